// BpeDefinition: a byte-level BPE tokenizer as its files define it. Read byte_level_bpe.h next: it
// checks a definition and encodes by it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "models/tokenizer/added_tokens.h"

namespace fox {

// Tokens are in the byte alphabet (byte_alphabet.h). Errors open with the name of the file at
// fault.
struct BpeDefinition {
  const char* vocab_file = "";
  const char* merges_file = "";
  absl::flat_hash_map<std::string, int32_t> vocab;
  std::vector<std::pair<std::string, std::string>> merges;  // by rank
  std::vector<AddedToken> added;                            // may repeat tokens of `vocab`
  bool add_prefix_space = false;            // a space before each text that does not start with one
  bool use_regex = true;                    // false: no pre-tokenizer, a text is one piece
  bool ignore_merges = false;               // a piece that is a token as a whole is not merged
  std::vector<int32_t> prefix, suffix;      // what add_special_tokens puts around a text
  std::optional<AddedToken> bos, eos, unk;  // their ids are not read
};

}  // namespace fox
