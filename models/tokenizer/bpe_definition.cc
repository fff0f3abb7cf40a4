// Added tokens of a BPE definition. See bpe_definition.h.
#include "models/tokenizer/bpe_definition.h"

namespace fox {

void SetAddedTokens(const TokenizerConfig& config, AddedTokenList list, BpeDefinition* definition) {
  AddTokens(config, &list);
  definition->added = list.tokens();
  const auto id_of = [&](const char* name) -> std::optional<int32_t> {
    const auto role = config.roles.find(name);
    return role == config.roles.end() ? std::nullopt : list.IdOf(role->second);
  };
  definition->bos_id = id_of("bos_token");
  definition->eos_id = id_of("eos_token");
  definition->unk_id = id_of("unk_token");
  const auto set = [](const std::optional<bool>& wanted, const std::optional<int32_t>& role,
                      std::vector<int32_t>* ids) {
    if (wanted.has_value()) ids->assign(*wanted && role ? 1 : 0, role.value_or(0));
  };
  set(config.add_bos_token, definition->bos_id, &definition->prefix);
  set(config.add_eos_token, definition->eos_id, &definition->suffix);
}

}  // namespace fox
