// The files of byte-level BPE tokenizers, loaded and then used on a text: no byte is lost. The ids
// themselves are tested by bpe_fuzzer.cc. An odd first byte adds the 256 bytes to the vocabulary,
// so that a short input makes a whole tokenizer.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "models/tokenizer/bpe_definition.h"
#include "models/tokenizer/byte_alphabet.h"
#include "models/tokenizer/byte_level_bpe.h"
#include "tests/fuzz/models/tokenizer_use.h"

namespace fox {
namespace {

constexpr int64_t kVocabSize = 1000;

// The JSON text with the 256 bytes in the vocabulary at `place`.
std::string WithBytes(const std::string& text, const std::string& place) {
  nlohmann::json json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  const nlohmann::json::json_pointer vocab(place);
  if (!json.contains(vocab) || !json[vocab].is_object()) return text;
  for (int byte = 0; byte < 256; ++byte) {
    json[vocab][CharacterOfByte(static_cast<uint8_t>(byte))] = byte;
  }
  return json.dump();
}

void UseByteLevel(absl::StatusOr<BpeDefinition> definition, std::string text) {
  if (!definition.ok()) return CheckRefusal(definition.status());
  text.resize(std::min<size_t>(text.size(), 512));
  definition->json_escaped = true;
  const auto escaped = ByteLevelBpe::Create(*definition, kVocabSize);
  definition->json_escaped = false;
  const auto plain = ByteLevelBpe::Create(*definition, kVocabSize);
  if (!plain.ok()) {
    FOX_CHECK(!escaped.ok());
    return CheckRefusal(plain.status());
  }
  UseTokenizer(**plain, text);
  if (escaped.ok()) {
    UseTokenizer(**escaped, text);
  } else {
    CheckRefusal(escaped.status());
  }
  if (!IsValidUtf8(text)) return;
  const auto& steps = definition->pretokenizer;
  const bool keeps_text =
      !definition->nfc && std::none_of(steps.begin(), steps.end(), [](const auto& step) {
        return step.prefix_space || step.behavior == PretokenizerStep::Behavior::kRemoved;
      });
  const auto ids = (*plain)->Encode(text, false);
  if (!ids.ok() || !definition->added.empty()) return;
  for (int byte = 0; byte < 256; ++byte) {
    if (!definition->vocab.contains(CharacterOfByte(static_cast<uint8_t>(byte)))) return;
  }
  if (keeps_text) FOX_CHECK(Detokenize(**plain, *ids, false) == text);
  if (escaped.ok() && keeps_text && (*escaped)->Encode(text, false).ok()) {
    FOX_CHECK(Detokenize(**escaped, *(*escaped)->Encode(text, false), false) == text);
  }
}

}  // namespace

// vocab.json, merges.txt, tokenizer_config.json and the text; added_tokens.json and
// special_tokens_map.json come last.
FUZZ_TEST(gpt2_files) {
  const bool with_bytes = in.Bool();
  const std::vector<std::string> files = in.Sections(6);
  const absl::StatusOr<TokenizerConfig> config = ParseTokenizerConfig(files[2], files[5], files[4]);
  if (!config.ok()) return CheckRefusal(config.status());
  UseByteLevel(ParseGpt2Files(with_bytes ? WithBytes(files[0], "") : files[0], files[1], *config),
               files[3]);
}

// tokenizer.json, tokenizer_config.json and the text.
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
