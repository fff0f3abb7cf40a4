// tokenizer.json of the Hugging Face tokenizers library for the tokenizers that this server loads,
// so that a gateway encodes texts in the same way. Read tokenizer_json.h next: the way back, for
// byte-level BPE.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "models/tokenizer/bpe_definition.h"
#include "models/tokenizer/sentencepiece_check.h"

namespace fox {

// The tokenizers read from the file give the same ids for a text without special tokens, and the
// same text for ids that continue one. Nothing is added around a text (bos): that is the server's.
// Unlike here, special tokens that stand in a text are found, so that chat templates can write
// them, and an unknown piece gives no text.
//
// Unimplemented names what the format cannot say: models that are not BPE, user-defined and unused
// pieces, spaces as suffixes or unescaped.
absl::StatusOr<std::string> WriteTokenizerJson(const SentencePieceFile& file);
// `prefix`, `suffix` and the roles are not written.
std::string WriteTokenizerJson(const BpeDefinition& definition);

}  // namespace fox
