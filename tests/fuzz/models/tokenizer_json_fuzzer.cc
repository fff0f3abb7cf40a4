// tokenizer.json and tokenizer_config.json, loaded and then used on a text: three sections. An odd
// first byte gives the vocabulary the 256 bytes, so that few bytes make a whole tokenizer.
#include <string>
#include <vector>

#include "models/tokenizer/bpe_definition.h"
#include "tests/fuzz/models/byte_level_use.h"

namespace fox {

FUZZ_TEST(tokenizer_json) {
  const bool with_bytes = in.Bool();
  const std::vector<std::string> files = in.Sections(3);
  const absl::StatusOr<TokenizerConfig> config = ParseTokenizerConfig(files[1], "", "");
  if (!config.ok()) return CheckRefusal(config.status());
  UseByteLevel(
      ParseTokenizerJson(with_bytes ? WithBytes(files[0], "/model/vocab") : files[0], *config),
      files[2]);
}

}  // namespace fox
