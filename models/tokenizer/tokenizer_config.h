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

inline constexpr char kAddedTokensFile[] = "added_tokens.json";

struct TokenizerConfig {
  std::string tokenizer_class;
  std::optional<bool> add_bos_token, add_prefix_space;
  // "bos_token", "eos_token", "unk_token", "pad_token": what the files name; a null there is a
  // key without value here. The token's id is not known.
  std::map<std::string, std::optional<AddedToken>> roles;
  std::vector<AddedToken> additional;        // further special tokens, ids unknown
  std::vector<AddedToken> added;             // added_tokens_decoder, with ids
  std::map<std::string, int32_t> added_ids;  // kAddedTokensFile
};

// The texts of the files; "" for a file that is not there. tokenizer_config.json has precedence
// over special_tokens_map.json. InvalidArgument names the file.
absl::StatusOr<TokenizerConfig> ParseTokenizerConfig(const std::string& tokenizer_config,
                                                     const std::string& special_tokens_map,
                                                     const std::string& added_tokens);

}  // namespace fox
