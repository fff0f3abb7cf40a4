// tokenizer.json of the Hugging Face tokenizers library, byte-level BPE only. Everything that would
// change the result and is not implemented is refused by name. Read byte_level_bpe.h next.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "models/tokenizer/byte_level_bpe.h"
#include "models/tokenizer/tokenizer_config.h"

namespace fox {

// Understood: model BPE, pre_tokenizer and decoder ByteLevel (alone or in a Sequence of their
// own), post_processor ByteLevel or TemplateProcessing, added_tokens; no normalizer. `truncation`
// and `padding` are left to the caller and ignored. bos and eos come from `config`.
// Unimplemented names what is not understood, InvalidArgument what is malformed.
absl::StatusOr<BpeDefinition> ParseTokenizerJson(const std::string& text,
                                                 const TokenizerConfig& config);

}  // namespace fox
