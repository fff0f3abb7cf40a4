// vocab.json, merges.txt and tokenizer_config.json, loaded and then used on a text, and last
// added_tokens.json and special_tokens_map.json: six sections. An odd first byte gives the
// vocabulary the 256 bytes, so that few bytes make a whole tokenizer.
#include <string>
#include <vector>

#include "models/tokenizer/bpe_definition.h"
#include "tests/fuzz/models/byte_level_use.h"

namespace fox {

FUZZ_TEST(gpt2_files) {
  const bool with_bytes = in.Bool();
  const std::vector<std::string> files = in.Sections(6);
  const absl::StatusOr<TokenizerConfig> config = ParseTokenizerConfig(files[2], files[5], files[4]);
  if (!config.ok()) return CheckRefusal(config.status());
  UseByteLevel(ParseGpt2Files(with_bytes ? WithBytes(files[0], "") : files[0], files[1], *config),
               files[3]);
}

}  // namespace fox
