// Finds added tokens by a byte trie, from every position. See added_tokens.h.
#include "models/tokenizer/added_tokens.h"

#include <algorithm>

#include "models/tokenizer/unicode_category.h"
#include "models/tokenizer/utf8.h"

namespace fox {
namespace {

bool IsContinuation(char byte) { return (static_cast<uint8_t>(byte) & 0xC0) == 0x80; }

// Start of the white space that ends at `end`, not before `begin`.
size_t SpaceBefore(const std::string& text, size_t begin, size_t end) {
  while (end > begin) {
    size_t at = end - 1;
    while (at > begin && IsContinuation(text[at])) --at;
    const Utf8Unit unit = NextUtf8(text.data() + at, end - at);
    if (CategoryOf(unit.code_point) != UnicodeCategory::kSpace) break;
    end = at;
  }
  return end;
}

// End of the white space that starts at `begin`.
size_t SpaceBehind(const std::string& text, size_t begin, size_t end) {
  while (begin < end) {
    const Utf8Unit unit = NextUtf8(text.data() + begin, end - begin);
    if (CategoryOf(unit.code_point) != UnicodeCategory::kSpace) break;
    begin += unit.length;
  }
  return begin;
}

uint64_t ChildKey(int32_t node, char byte) {
  return (static_cast<uint64_t>(static_cast<uint32_t>(node)) << 8) | static_cast<uint8_t>(byte);
}

}  // namespace

bool IsWhiteSpace(const std::string& text) {
  return SpaceBehind(text, 0, text.size()) == text.size();
}

void AddedTokenSplitter::Trie::Add(const std::string& content, int32_t index) {
  first_[static_cast<uint8_t>(content[0])] = true;
  int32_t node = 0;
  for (const char byte : content) {
    const auto [it, inserted] =
        child_.try_emplace(ChildKey(node, byte), static_cast<int32_t>(index_.size()));
    if (inserted) index_.push_back(-1);
    node = it->second;
  }
  index_[static_cast<size_t>(node)] = index;
}

int32_t AddedTokenSplitter::Trie::Match(const std::string& text, size_t at, size_t end) const {
  if (!first_[static_cast<uint8_t>(text[at])]) return -1;
  int32_t node = 0;
  int32_t found = -1;
  for (; at < end; ++at) {
    const auto it = child_.find(ChildKey(node, text[at]));
    if (it == child_.end()) break;
    node = it->second;
    const int32_t index = index_[static_cast<size_t>(node)];
    if (index >= 0) found = index;
  }
  return found;
}

void AddedTokenSplitter::Add(const AddedToken& token) {
  Trie& trie = token.normalized ? normalized_ : plain_;
  trie.Add(token.content, static_cast<int32_t>(tokens_.size()));
  tokens_.push_back(token);
}

void AddedTokenSplitter::SplitText(const std::string& text, const TextPart& part, const Trie& trie,
                                   const Take& take) const {
  size_t done = part.begin;
  for (size_t at = part.begin; at < part.end;) {
    const int32_t index = trie.Match(text, at, part.end);
    if (index < 0) {
      ++at;
      continue;
    }
    const AddedToken& token = tokens_[static_cast<size_t>(index)];
    size_t end = at + token.content.size();
    const size_t begin = token.lstrip ? SpaceBefore(text, done, at) : at;
    if (token.rstrip) end = SpaceBehind(text, end, part.end);
    if (done < begin) take({done, begin});
    take({begin, end, token.id});
    done = at = end;
  }
  if (done < part.end) take({done, part.end});
}

void AddedTokenSplitter::Split(const std::string& text, const Take& take) const {
  SplitText(text, {0, text.size()}, plain_, [&](const TextPart& part) {
    if (part.id == TextPart::kText) {
      SplitText(text, part, normalized_, take);
    } else {
      take(part);
    }
  });
}

}  // namespace fox
