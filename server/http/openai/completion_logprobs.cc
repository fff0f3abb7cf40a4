// CompletionLogprobs: see completion_logprobs.h.
#include "server/http/openai/completion_logprobs.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "kernels/core/check.h"
#include "models/tokenizer/utf8.h"
#include "server/http/port/http_error.h"

namespace fox {
namespace {

// JSON has no infinity; OpenAI's servers put this in its place.
constexpr double kLeast = -9999.0;

// As many digits as it takes to read the same number back.
std::string Number(float logprob) {
  std::array<char, 32> digits{};
  const double value = std::max(static_cast<double>(logprob), kLeast);
  char* end = std::to_chars(digits.data(), digits.data() + digits.size(), value).ptr;
  return std::string(digits.data(), end);
}

void Append(const std::string& item, std::string* list) {
  if (!list->empty()) list->push_back(',');
  *list += item;
}

}  // namespace

std::string TokenName(const Tokenizer& tokenizer, int32_t id) {
  std::string bytes = tokenizer.TokenBytes(id, /*skip_special=*/false);
  if (bytes.empty()) return absl::StrCat("token_id:", id);
  if (IsValidUtf8(bytes)) return bytes;
  std::string name = "bytes:";
  for (char byte : bytes) absl::StrAppendFormat(&name, "\\x%02x", static_cast<unsigned char>(byte));
  return name;
}

CompletionLogprobs::CompletionLogprobs(const Tokenizer& tokenizer, bool skip_special,
                                       bool at_text_start, bool chat)
    : tokenizer_(tokenizer), chat_(chat), skip_special_(skip_special) {
  stream_.emplace(tokenizer, skip_special, at_text_start);
}

void CompletionLogprobs::AddFirst(int32_t id) { AddToken(id, "null", "null"); }

void CompletionLogprobs::SkipFirst(int32_t id) { offset_ += CountCharacters(stream_->Push(id)); }

std::string CompletionLogprobs::Entry(const v1::TokenLogprob& token) const {
  const auto id = static_cast<int32_t>(token.token_id());
  const std::string bytes = absl::StrJoin(
      tokenizer_.TokenBytes(id, /*skip_special=*/false), ",", [](std::string* out, char c) {
        absl::StrAppend(out, static_cast<int>(static_cast<unsigned char>(c)));
      });
  return absl::StrCat("{\"token\":", JsonString(TokenName(tokenizer_, id)),
                      ",\"logprob\":", Number(token.logprob()),
                      ",\"bytes\":", bytes.empty() ? "null" : absl::StrCat("[", bytes, "]"));
}

void CompletionLogprobs::Add(const v1::TokenLogprobs& logprobs) {
  if (chat_) {
    std::string likeliest;
    for (const v1::TokenLogprob& other : logprobs.top()) Append(Entry(other) + "}", &likeliest);
    const std::string entry = Entry(logprobs.token());
    return Append(absl::StrCat(entry, ",\"top_logprobs\":[", likeliest, "]}"), &tokens_);
  }
  const auto own = static_cast<int32_t>(logprobs.token().token_id());
  std::vector<std::string> names{TokenName(tokenizer_, own)};
  const std::string logprob = Number(logprobs.token().logprob());
  std::string top = absl::StrCat("{", JsonString(names.front()), ":", logprob);
  for (const v1::TokenLogprob& other : logprobs.top()) {
    std::string name = TokenName(tokenizer_, static_cast<int32_t>(other.token_id()));
    // Two tokens of one text: the likelier one comes first and stays.
    if (std::find(names.begin(), names.end(), name) != names.end()) continue;
    absl::StrAppend(&top, ",", JsonString(name), ":", Number(other.logprob()));
    names.push_back(std::move(name));
  }
  AddToken(own, logprob, top + "}");
}

void CompletionLogprobs::Follow(const CompletionLogprobs& prompt, int64_t characters) {
  FOX_CHECK(tokens_.empty() && characters >= 0);
  FOX_CHECK(chat_ == prompt.chat_);
  tokens_ = prompt.tokens_;
  logprobs_ = prompt.logprobs_;
  top_ = prompt.top_;
  offsets_ = prompt.offsets_;
  offset_ = characters;
}

void CompletionLogprobs::AddToken(int32_t id, const std::string& logprob, const std::string& top) {
  Append(JsonString(TokenName(tokenizer_, id)), &tokens_);
  Append(logprob, &logprobs_);
  Append(top, &top_);
  Append(absl::StrCat(offset_), &offsets_);
  if (before_text_ > 0) {
    --before_text_;
    return;
  }
  offset_ += CountCharacters(stream_->Push(id));
  if (sent_text_ && tokenizer_.IsAdded(id)) {
    stream_.emplace(tokenizer_, skip_special_, /*at_text_start=*/true);
  }
}

std::string CompletionLogprobs::TakeJson(bool whole) {
  if (tokens_.empty() && !whole) return "null";
  if (chat_) {
    return absl::StrCat("{\"content\":[", std::exchange(tokens_, {}), "],\"refusal\":null}");
  }
  std::string out =
      absl::StrCat("{\"tokens\":[", tokens_, "],\"token_logprobs\":[", logprobs_,
                   "],\"top_logprobs\":[", top_, "],\"text_offset\":[", offsets_, "]}");
  for (std::string* list : {&tokens_, &logprobs_, &top_, &offsets_}) list->clear();
  return out;
}

int64_t CompletionLogprobs::bytes() const {
  return static_cast<int64_t>(tokens_.size() + logprobs_.size() + top_.size() + offsets_.size());
}

int64_t CountCharacters(const std::string& text) {
  return std::count_if(text.begin(), text.end(), [](char c) { return !IsContinuationByte(c); });
}

}  // namespace fox
