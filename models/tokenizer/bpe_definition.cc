// Added tokens of a BPE definition. See bpe_definition.h.
#include "models/tokenizer/bpe_definition.h"

namespace fox {

AddedTokenList ListOfAddedTokens(const BpeDefinition& definition) {
  const auto find = [&definition](const std::string& content) -> std::optional<int32_t> {
    const auto it = definition.vocab.find(content);
    return it == definition.vocab.end() ? std::nullopt : std::optional(it->second);
  };
  return AddedTokenList(find, definition.vocab.size());
}

void SetAddedTokens(const std::vector<AddedToken>& added, std::optional<bool> add_bos,
                    std::optional<bool> add_eos, BpeDefinition* definition) {
  definition->added = added;
  const auto ids_of = [&added](const std::optional<AddedToken>& role, bool wanted) {
    std::vector<int32_t> ids;
    for (const AddedToken& token : added) {
      if (wanted && role.has_value() && token.content == role->content) ids = {token.id};
    }
    return ids;
  };
  if (add_bos.has_value()) definition->prefix = ids_of(definition->bos, *add_bos);
  if (add_eos.has_value()) definition->suffix = ids_of(definition->eos, *add_eos);
}

}  // namespace fox
