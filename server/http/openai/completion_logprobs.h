// CompletionLogprobs: log-probabilities in the form of OpenAI's completions, four parallel lists
// with an entry for each token, or of its chat, one list of objects. They are kept as JSON text: a
// document of many small values takes ten times the memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "fox/v1/inference.pb.h"
#include "models/tokenizer/token_stream.h"

namespace fox {

// The name of a token in an answer: its text; "bytes:\xe2\x82" for bytes that are no text; the name
// of a special token.
std::string TokenName(const Tokenizer& tokenizer, int32_t id);

// The tokens of one text in order. Not thread-safe. The tokenizer must outlive it.
class CompletionLogprobs {
 public:
  // `at_text_start`: the first token begins the text; else it continues one.
  CompletionLogprobs(const Tokenizer& tokenizer, bool skip_special, bool at_text_start,
                     bool chat = false);

  // FollowSentText counts offsets in a text as the client sent it: the first `before` tokens, as
  // bos, are not in that text, and the tokenizer has read each part behind an added token as a text
  // of its own. Call it before the first token.
  void FollowSentText(size_t before) {
    before_text_ = before;
    sent_text_ = true;
  }
  // The first token of a prompt, which has no probability.
  void AddFirst(int32_t id);
  // A first token that the client did not send: it is in no list, but precedes the others in the
  // text.
  void SkipFirst(int32_t id);
  // The token and its alternatives.
  void Add(const v1::TokenLogprobs& logprobs);
  // Begins as a copy of a prompt's lists; the next offset is `characters`.
  void Follow(const CompletionLogprobs& prompt, int64_t characters);

  // The lists so far as one JSON object; they begin anew. `whole`: the answer is not streamed, and
  // has lists even without a token; else "null" if no token came since the last call.
  std::string TakeJson(bool whole);
  int64_t bytes() const;

 private:
  // The chat API's object for a token, without the closing brace.
  std::string Entry(const v1::TokenLogprob& token) const;
  void AddToken(int32_t id, const std::string& logprob, const std::string& top);

  const Tokenizer& tokenizer_;
  const bool chat_;
  const bool skip_special_;
  std::optional<TokenStream> stream_;  // counts characters
  bool sent_text_ = false;
  int64_t offset_ = 0;      // of the next token, in characters
  size_t before_text_ = 0;  // tokens to come that are not in the text
  std::string tokens_, logprobs_, top_, offsets_;
};

// The characters (code points) of a text.
int64_t CountCharacters(const std::string& text);

}  // namespace fox
