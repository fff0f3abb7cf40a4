// Added tokens, as <|endoftext|>: they are recognised in a text before it is encoded. If two
// overlap, the leftmost wins; if they begin together, the longest. Read byte_level_bpe.h next.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"

namespace fox {

struct AddedToken {
  std::string content;
  int32_t id = 0;
  bool lstrip = false;       // swallows the white space before it
  bool rstrip = false;       // swallows the white space after it
  bool normalized = false;   // searched in normalized text, after the tokens that are not
  bool single_word = false;  // not recognised next to a letter, a digit or the like
  bool special = false;      // dropped from decoded text on request
  const char* file = "";     // the file that lists it, for error messages
};

// Numbers added tokens as the `tokenizers` package does, in the order of Add: a token of the
// vocabulary keeps its id, any other token gets the next id after the vocabulary and the tokens
// before it. Ids in files are ignored, because the package ignores them, too.
class AddedTokenList {
 public:
  // `vocab`: ids of tokens in a vocabulary of `vocab_tokens` tokens; must outlive the list.
  AddedTokenList(const absl::flat_hash_map<std::string, int32_t>& vocab, size_t vocab_tokens)
      : vocab_(vocab), vocab_tokens_(static_cast<int32_t>(vocab_tokens)) {}

  // Adds a token. If its content is known, the options are replaced, but a special token stays
  // special. Ignores an empty content.
  void Add(AddedToken token);
  bool Contains(const std::string& content) const { return index_.contains(content); }
  // The id of the token with the content of `role`; no value if there is none.
  std::optional<int32_t> IdOf(const std::optional<AddedToken>& role) const;
  const std::vector<AddedToken>& tokens() const { return tokens_; }

 private:
  const absl::flat_hash_map<std::string, int32_t>& vocab_;
  int32_t vocab_tokens_, largest_id_ = -1;
  std::vector<AddedToken> tokens_;
  absl::flat_hash_map<std::string, size_t> index_;  // content -> index in tokens_
};

// A part of a text: an added token, or text between them.
struct TextPart {
  static constexpr int32_t kText = -1;
  std::string_view text;
  int32_t id = kText;
};

bool IsWhiteSpace(std::string_view text);

// Immutable once all tokens are added; Split may then be called from any thread.
class AddedTokenSplitter {
 public:
  // Longest content in bytes; it bounds the cost of Split to size * kMaxContent.
  static constexpr size_t kMaxContent = 512;

  using Normalize = std::function<std::string(std::string_view)>;
  // `normalize`, if any, is applied to the text between tokens that are not `normalized`.
  explicit AddedTokenSplitter(Normalize normalize = nullptr) : normalize_(std::move(normalize)) {}

  // REQUIRES: the content has 1 to kMaxContent bytes.
  void Add(const AddedToken& token);

  using Take = std::function<void(const TextPart&)>;
  // Calls `take` with the non-empty parts of `text` (valid UTF-8), in order. A part is valid during
  // the call only.
  void Split(std::string_view text, const Take& take) const;

 private:
  class Trie {
   public:
    void Add(const std::string& content, int32_t index);
    // Index and length of the longest content that starts at `begin`, -1 if none.
    std::pair<int32_t, size_t> Match(std::string_view text, size_t begin) const;

   private:
    std::array<bool, 256> first_ = {};
    absl::flat_hash_map<std::pair<int32_t, char>, int32_t> child_;  // by node and byte
    std::vector<int32_t> index_ = {-1};                             // by node; node 0 is the root
  };

  void SplitText(std::string_view text, const Trie& trie, const Take& take) const;

  Normalize normalize_;
  std::vector<AddedToken> tokens_;
  Trie plain_, normalized_;
};

}  // namespace fox
