// Added tokens (<|endoftext|> and the like): recognised in the text before anything else is done
// to it. Of overlapping ones the leftmost wins, then the longest. Read byte_level_bpe.h next.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"

namespace fox {

struct AddedToken {
  std::string content;
  int32_t id = 0;
  bool lstrip = false;      // swallows the white space before it
  bool rstrip = false;      // swallows the white space after it
  bool normalized = false;  // looked for after all tokens that are not
  bool special = false;     // dropped from decoded text on request
  const char* file = "";    // that names it, for error messages
};

// A part of a text: an added token, or text between them.
struct TextPart {
  static constexpr int32_t kText = -1;
  size_t begin = 0, end = 0;
  int32_t id = kText;
};

bool IsWhiteSpace(const std::string& text);

// Immutable once all tokens are added; Split may then be called from any thread.
class AddedTokenSplitter {
 public:
  // Longest content in bytes; it bounds the cost of Split to size * kMaxContent.
  static constexpr size_t kMaxContent = 512;

  // REQUIRES: the content is not empty and at most kMaxContent bytes.
  void Add(const AddedToken& token);

  using Take = std::function<void(const TextPart&)>;
  // Calls `take` with the non-empty parts of `text` (valid UTF-8), in order and without gaps.
  void Split(const std::string& text, const Take& take) const;

 private:
  class Trie {
   public:
    void Add(const std::string& content, int32_t index);
    // Index of the longest content that starts at `at`, -1 if none.
    int32_t Match(const std::string& text, size_t at, size_t end) const;

   private:
    std::array<bool, 256> first_ = {};
    absl::flat_hash_map<uint64_t, int32_t> child_;  // key: node << 8 | byte
    std::vector<int32_t> index_ = {-1};             // by node; node 0 is the root
  };

  void SplitText(const std::string& text, const TextPart& part, const Trie& trie,
                 const Take& take) const;

  std::vector<AddedToken> tokens_;
  Trie plain_, normalized_;
};

}  // namespace fox
