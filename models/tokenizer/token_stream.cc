// Incremental detokenization, and Detokenize through it. See token_stream.h.
#include "models/tokenizer/token_stream.h"

#include "kernels/core/check.h"
#include "models/tokenizer/json_escape.h"
#include "models/tokenizer/utf8.h"

namespace fox {

TokenStream::TokenStream(const Tokenizer& tokenizer, bool skip_special, bool at_text_start)
    : tokenizer_(tokenizer), skip_special_(skip_special), at_start_(at_text_start) {}

std::string TokenStream::Push(int32_t id) {
  std::string text;
  const Tokenizer::TokenKind kind = tokenizer_.KindOf(id);
  if (kind != Tokenizer::TokenKind::kBytes) Drain(true, &text);
  std::string bytes = tokenizer_.TokenBytes(id, skip_special_);
  if (at_start_) {
    const Tokenizer::Info& info = tokenizer_.info();
    const bool strip =
        kind == Tokenizer::TokenKind::kWord && info.strip_leading_space && !bytes.empty();
    if (strip) bytes.erase(0, 1);
    at_start_ = bytes.empty() && (!strip || info.strip_all_leading_spaces);
  }
  pending_ += bytes;
  Drain(false, &text);
  FOX_CHECK(pending_.size() <= 11);
  return text;
}

std::string TokenStream::Finish() {
  std::string text;
  Drain(true, &text);
  FOX_CHECK(pending_.empty());
  return text;
}

void TokenStream::Drain(bool final, std::string* text) {
  if (tokenizer_.info().json_escaped) {
    JsonUnescape(&pending_, final, text);
  } else {
    DrainUtf8(&pending_, final, tokenizer_.info().replacement, text);
  }
}

std::string Detokenize(const Tokenizer& tokenizer, const std::vector<int32_t>& ids,
                       bool skip_special) {
  TokenStream stream(tokenizer, skip_special);
  std::string text;
  for (const int32_t id : ids) text += stream.Push(id);
  return text + stream.Finish();
}

}  // namespace fox
