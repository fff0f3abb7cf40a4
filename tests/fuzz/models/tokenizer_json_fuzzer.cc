// tokenizer.json and tokenizer_config.json, loaded and then used on a text: three sections. An odd
// first byte gives the vocabulary the 256 bytes, so that few bytes make a whole tokenizer.
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "models/tokenizer/tokenizer_json.h"
#include "tests/fuzz/fuzz_input.h"
#include "tests/fuzz/models/byte_level_use.h"

namespace fox {
namespace {

std::string WithBytes(const std::string& text) {
  nlohmann::json json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  const nlohmann::json::json_pointer vocab("/model/vocab");
  if (!json.contains(vocab) || !json[vocab].is_object()) return text;
  for (int byte = 0; byte < 256; ++byte) {
    json[vocab][CharacterOfByte(static_cast<uint8_t>(byte))] = byte;
  }
  return json.dump();
}

void Fuzz(FuzzInput in) {
  const bool with_bytes = in.Bool();
  const std::vector<std::string> files = in.Sections(3);
  const absl::StatusOr<TokenizerConfig> config = ParseTokenizerConfig(files[1], "", "");
  if (!config.ok()) return CheckRefusal(config.status());
  UseByteLevel(ParseTokenizerJson(with_bytes ? WithBytes(files[0]) : files[0], *config), files[2]);
}

}  // namespace
}  // namespace fox

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fox::Fuzz(fox::FuzzInput(data, size));
  return 0;
}
