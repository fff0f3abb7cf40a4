// TokenStream: turns the tokens of one sequence into text. It emits only complete UTF-8 characters
// (and, for LongCrawl64, complete JSON escapes, surrogate pairs joined). Bytes that later tokens
// may complete are held back: at most 3 bytes, or 11 of an escape. Invariant: the results of all
// Push and Finish joined are Detokenize of the same ids, which for sentencepiece equals the
// library's decoding. A stream that continues a prompt does not know bytes that the prompt left
// incomplete.
#pragma once

#include <cstdint>
#include <string>

#include "models/tokenizer/tokenizer.h"

namespace fox {

// Not thread-safe. The tokenizer must outlive the stream.
class TokenStream {
 public:
  // `at_text_start`: the first token begins a text, so the space before a first word is dropped.
  // False: the text continues a prompt, where that space separates words.
  TokenStream(const Tokenizer& tokenizer, bool skip_special, bool at_text_start = true);

  // Returns the text that this token completes; may be empty.
  std::string Push(int32_t id);
  // Returns the text that is held back, with U+FFFD for invalid or incomplete bytes.
  std::string Finish();

 private:
  void Drain(bool final, std::string* text);

  const Tokenizer& tokenizer_;
  bool skip_special_;
  bool at_start_;
  std::string pending_;  // bytes not yet emitted
};

}  // namespace fox
