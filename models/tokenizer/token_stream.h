// TokenStream: tokens in, text out, one request's worth. It emits only complete UTF-8 characters
// (and, for LongCrawl64, complete JSON escapes, surrogate pairs joined). Bytes that later tokens
// may complete are held back: at most 3 bytes, or 11 of an escape. Invariant: the concatenation of
// all Push and Finish results is Detokenize of the same ids, for sentencepiece equal to what the
// library decodes. A stream that continues a prompt cannot know bytes that the prompt left
// incomplete.
#pragma once

#include <cstdint>
#include <string>

#include "models/tokenizer/tokenizer.h"

namespace fox {

// Not thread-safe. The tokenizer must outlive the stream.
class TokenStream {
 public:
  // `at_text_start`: the first token begins a text, so the space of a first word is dropped; false
  // for the continuation of a prompt, where that space separates words.
  TokenStream(const Tokenizer& tokenizer, bool skip_special, bool at_text_start = true);

  // Text that became complete with this token; may be empty.
  std::string Push(int32_t id);
  // What was still held back, invalid or incomplete bytes as U+FFFD.
  std::string Finish();

 private:
  void Drain(bool final, std::string* text);

  const Tokenizer& tokenizer_;
  bool skip_special_;
  bool at_start_;
  std::string pending_;  // bytes not yet emitted
};

}  // namespace fox
