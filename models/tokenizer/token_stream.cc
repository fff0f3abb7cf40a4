// Incremental detokenization, and Detokenize through it. See token_stream.h.
#include "models/tokenizer/token_stream.h"

#include "models/tokenizer/json_escape.h"
#include "models/tokenizer/utf8.h"

namespace fox {

TokenStream::TokenStream(const Tokenizer& tokenizer, bool skip_special, bool at_text_start)
    : tokenizer_(tokenizer), skip_special_(skip_special), at_start_(at_text_start) {}

std::string TokenStream::Push(int32_t id) {
  std::string bytes = tokenizer_.TokenBytes(id, skip_special_);
  if (at_start_ && !bytes.empty()) {
    const Tokenizer::Info& info = tokenizer_.info();
    if (info.strip_leading_space && bytes[0] == ' ') bytes.erase(0, 1);
    at_start_ = info.strip_all_leading_spaces && bytes.empty();
  }
  pending_ += bytes;
  return Drain(false);
}

std::string TokenStream::Finish() { return Drain(true); }

std::string TokenStream::Drain(bool final) {
  std::string text;
  if (tokenizer_.info().json_escaped) {
    JsonUnescape(&pending_, final, &text);
  } else {
    DrainUtf8(&pending_, final, &text);
  }
  return text;
}

std::string Detokenize(const Tokenizer& tokenizer, const std::vector<int32_t>& ids,
                       bool skip_special) {
  TokenStream stream(tokenizer, skip_special);
  std::string text;
  for (const int32_t id : ids) text += stream.Push(id);
  return text + stream.Finish();
}

}  // namespace fox
