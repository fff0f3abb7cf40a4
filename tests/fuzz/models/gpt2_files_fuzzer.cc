// vocab.json, merges.txt and tokenizer_config.json, loaded and then used on a text, and last
// added_tokens.json: five sections. An odd first byte gives the vocabulary the 256 bytes, so that
// few bytes make a whole tokenizer.
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "models/tokenizer/gpt2_files.h"
#include "tests/fuzz/fuzz_input.h"
#include "tests/fuzz/models/byte_level_use.h"

namespace fox {
namespace {

std::string WithBytes(const std::string& vocab) {
  nlohmann::json json = nlohmann::json::parse(vocab, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return vocab;
  for (int byte = 0; byte < 256; ++byte) json[CharacterOfByte(static_cast<uint8_t>(byte))] = byte;
  return json.dump();
}

void Fuzz(FuzzInput in) {
  const bool with_bytes = in.Bool();
  const std::vector<std::string> files = in.Sections(5);
  const absl::StatusOr<TokenizerConfig> config = ParseTokenizerConfig(files[2], "", files[4]);
  if (!config.ok()) return CheckRefusal(config.status());
  UseByteLevel(ParseGpt2Files(with_bytes ? WithBytes(files[0]) : files[0], files[1], *config),
               files[3]);
}

}  // namespace
}  // namespace fox

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fox::Fuzz(fox::FuzzInput(data, size));
  return 0;
}
