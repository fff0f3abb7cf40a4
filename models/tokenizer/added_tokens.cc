// Finds added tokens by a byte trie, from every position. See added_tokens.h.
#include "models/tokenizer/added_tokens.h"

#include <utf8proc.h>

#include <algorithm>

#include "kernels/core/check.h"
#include "models/tokenizer/utf8.h"

namespace fox {
namespace {

// The start of the white space that ends at `end`; at least `begin`.
size_t SpaceBefore(std::string_view text, size_t begin, size_t end) {
  while (end > begin) {
    size_t at = end - 1;
    while (at > begin && IsContinuationByte(text[at])) --at;
    if (!IsWhiteSpace(NextUtf8(text.data() + at, end - at).code_point)) break;
    end = at;
  }
  return end;
}

// The end of the white space that starts at `begin`.
size_t SpaceBehind(std::string_view text, size_t begin) {
  while (begin < text.size()) {
    const Utf8Unit unit = NextUtf8(text.data() + begin, text.size() - begin);
    if (!IsWhiteSpace(unit.code_point)) break;
    begin += unit.length;
  }
  return begin;
}

// The regular expression \w of the reference implementation: letters, marks, decimal digits,
// letters in circles, joining punctuation and the joiners.
bool IsWord(uint32_t code_point) {
  // In their order: letters, marks, numbers of digits and of letters.
  static_assert(UTF8PROC_CATEGORY_LU + 9 == UTF8PROC_CATEGORY_NL);
  const utf8proc_category_t category = utf8proc_category(static_cast<int32_t>(code_point));
  return (category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_NL) ||
         category == UTF8PROC_CATEGORY_PC || code_point == 0x200C || code_point == 0x200D ||
         (code_point >= 0x24B6 && code_point <= 0x24E9) ||
         (code_point >= 0x1F130 && code_point <= 0x1F149) ||
         (code_point >= 0x1F150 && code_point <= 0x1F169) ||
         (code_point >= 0x1F170 && code_point <= 0x1F189);
}

// True if a letter or the like is just before or just after text[begin, end).
bool TouchesWord(std::string_view text, size_t begin, size_t end) {
  size_t before = begin;
  while (before > 0 && IsContinuationByte(text[--before])) continue;
  return (begin > 0 && IsWord(NextUtf8(text.data() + before, begin - before).code_point)) ||
         (end < text.size() && IsWord(NextUtf8(text.data() + end, text.size() - end).code_point));
}

}  // namespace

void AddedTokenList::Add(AddedToken token) {
  if (token.content.empty()) return;
  const auto [it, inserted] = index_.try_emplace(token.content, tokens_.size());
  if (!inserted) {
    AddedToken& known = tokens_[it->second];
    token.id = known.id;
    token.special = token.special || known.special;
    known = std::move(token);
    return;
  }
  const auto known = vocab_.find(token.content);
  token.id = known != vocab_.end() ? known->second : std::max(vocab_tokens_, largest_id_ + 1);
  largest_id_ = std::max(largest_id_, token.id);
  tokens_.push_back(std::move(token));
}

std::optional<int32_t> AddedTokenList::IdOf(const std::optional<AddedToken>& role) const {
  const auto it = role.has_value() ? index_.find(role->content) : index_.end();
  return it == index_.end() ? std::nullopt : std::optional(tokens_[it->second].id);
}

bool IsWhiteSpace(std::string_view text) { return SpaceBehind(text, 0) == text.size(); }

void AddedTokenSplitter::Trie::Add(const std::string& content, int32_t index) {
  first_[static_cast<uint8_t>(content[0])] = true;
  int32_t node = 0;
  for (const char byte : content) {
    const auto [it, inserted] =
        child_.try_emplace({node, byte}, static_cast<int32_t>(index_.size()));
    if (inserted) index_.push_back(-1);
    node = it->second;
  }
  index_[static_cast<size_t>(node)] = index;
}

std::pair<int32_t, size_t> AddedTokenSplitter::Trie::Match(std::string_view text,
                                                           size_t begin) const {
  FOX_CHECK(begin < text.size());
  std::pair<int32_t, size_t> found = {-1, 0};
  if (!first_[static_cast<uint8_t>(text[begin])]) return found;
  int32_t node = 0;
  for (size_t at = begin; at < text.size(); ++at) {
    const auto it = child_.find({node, text[at]});
    if (it == child_.end()) break;
    node = it->second;
    const int32_t index = index_[static_cast<size_t>(node)];
    if (index >= 0) found = {index, at + 1 - begin};
  }
  return found;
}

void AddedTokenSplitter::Add(const AddedToken& token) {
  FOX_CHECK(!token.content.empty() && token.content.size() <= kMaxContent);
  Trie& trie = token.normalized ? normalized_ : plain_;
  trie.Add(token.normalized && normalize_ ? normalize_(token.content) : token.content,
           static_cast<int32_t>(tokens_.size()));
  tokens_.push_back(token);
}

void AddedTokenSplitter::SplitText(std::string_view text, const Trie& trie,
                                   const Take& take) const {
  size_t done = 0;
  for (size_t at = 0; at < text.size();) {
    const auto [index, length] = trie.Match(text, at);
    if (index < 0) {
      ++at;
      continue;
    }
    FOX_CHECK(length > 0 && static_cast<size_t>(index) < tokens_.size());
    const AddedToken& token = tokens_[static_cast<size_t>(index)];
    if (token.single_word && TouchesWord(text, at, at + length)) {
      at += length;
      continue;
    }
    const size_t begin = token.lstrip ? std::max(SpaceBefore(text, done, at), done) : at;
    at += length;
    const size_t end = token.rstrip ? SpaceBehind(text, at) : at;
    if (done < begin) take({text.substr(done, begin - done)});
    // Empty: the token before it has swallowed all of this one, which is white space.
    if (begin < end) take({text.substr(begin, end - begin), token.id});
    done = end;  // the search goes on at `at`: swallowed space may begin the next token
  }
  if (done < text.size()) take({text.substr(done)});
}

void AddedTokenSplitter::Split(std::string_view text, const Take& take) const {
  SplitText(text, plain_, [&](const TextPart& part) {
    if (part.id != TextPart::kText) return take(part);
    if (!normalize_) return SplitText(part.text, normalized_, take);
    SplitText(normalize_(part.text), normalized_, take);
  });
}

}  // namespace fox
