// The contents of Hugging Face's small tokenizer files: tokenizer_config.json,
// special_tokens_map.json and added_tokens.json. All are optional. Read bpe_definition.h next.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "models/tokenizer/added_tokens.h"

namespace fox {

struct TokenizerConfig {
  std::string tokenizer_class;  // without the "Fast" at its end
  std::optional<bool> add_bos_token, add_eos_token, add_prefix_space, legacy;
  // The tokens that the files give for roles: "bos_token", "eos_token" and others. No value: the
  // files have null for the role.
  std::map<std::string, std::optional<AddedToken>> roles;
  std::vector<AddedToken> added;  // of added_tokens_decoder or added_tokens.json, in order of ids
  std::vector<AddedToken> named;  // further special tokens of the other two files
};

// Parses the texts of the files; "" for a missing file. As in transformers, a tokenizer_config.json
// with added_tokens_decoder has precedence over the other two files, which then only add roles that
// it lacks; otherwise special_tokens_map.json has precedence over it. InvalidArgument names the
// file.
absl::StatusOr<TokenizerConfig> ParseTokenizerConfig(const std::string& tokenizer_config,
                                                     const std::string& special_tokens_map,
                                                     const std::string& added_tokens);

// Adds the tokens of `config` to a list that holds the tokens of the tokenizer's own file.
void AddTokens(const TokenizerConfig& config, AddedTokenList* list);

}  // namespace fox
