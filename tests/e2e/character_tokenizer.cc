// CharacterTokenizer: see character_tokenizer.h.
#include "tests/e2e/character_tokenizer.h"

namespace fox {

CharacterTokenizer::CharacterTokenizer() {
  info_.kind = "characters";
  info_.vocab_size = kVocabSize;
  info_.bos_id = kBos;
  info_.eos_id = kEos;
  info_.prefix = {kBos};
}

absl::StatusOr<std::vector<int32_t>> CharacterTokenizer::Encode(const std::string& text,
                                                                bool add_special_tokens) const {
  std::vector<int32_t> ids;
  if (add_special_tokens) ids.push_back(kBos);
  for (char c : text) ids.push_back(static_cast<unsigned char>(c));
  return ids;
}

std::string CharacterTokenizer::TokenBytes(int32_t id, bool skip_special) const {
  if (id < 256) return std::string(1, static_cast<char>(id));
  if (id == kBos) return skip_special ? "" : "<s>";
  if (id == kEos) return skip_special ? "" : "</s>";
  return std::string(512, static_cast<char>('A' + id % 26));
}

ChatFormat CharacterTokenizer::Chat() const {
  return *ChatFormat::Parse(R"({"bos": "<s>", "generation_prompt": "A:", "roles": {
      "system": {"prefix": "S:", "suffix": ".\n"}, "user": {"prefix": "U:", "suffix": "\n"},
      "assistant": {"prefix": "A:", "suffix": "</s>\n"}},
      "thinking": {"prefix": "<t>", "suffix": "</t>", "skip": "<t></t>"}})",
                            *this);
}

}  // namespace fox
