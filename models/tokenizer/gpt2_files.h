// GPT-2's two files, vocab.json and merges.txt, as a BPE definition. Read byte_level_bpe.h next: it
// checks that they fit together.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "models/tokenizer/byte_level_bpe.h"
#include "models/tokenizer/tokenizer_config.h"

namespace fox {

// vocab.json: one object, token to id. merges.txt: a line for each rule, two tokens and a space
// between; lines that start with #version are skipped. Special tokens that `config` does not name
// are <|endoftext|>, as in GPT-2. InvalidArgument names the file and the line or token.
absl::StatusOr<BpeDefinition> ParseGpt2Files(const std::string& vocab_json,
                                             const std::string& merges_txt,
                                             const TokenizerConfig& config);

}  // namespace fox
