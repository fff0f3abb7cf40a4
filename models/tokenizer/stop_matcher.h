// StopMatcher: finds the first of several stop strings in a growing text (Aho-Corasick), one step a
// byte whatever their number. Invariant: held() is the longest end of the text so far that begins a
// stop string, so all before it is safe to show. Read text_assembler.h next.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace fox {

// Not thread-safe.
class StopMatcher {
 public:
  // REQUIRES: no string is empty.
  explicit StopMatcher(const std::vector<std::string>& stops);

  // Adds one byte. Returns the index of the longest stop string that ends with it, or -1.
  int Push(char byte);
  // Bytes that may still become a stop string.
  size_t held() const { return static_cast<size_t>(nodes_[static_cast<size_t>(state_)].depth); }

 private:
  struct Node {
    int32_t first_child = -1, next_sibling = -1;
    int32_t fail = 0;    // the longest proper end of this prefix that is a prefix too
    int32_t match = -1;  // longest stop string that ends here, itself or along fail
    int32_t depth = 0;
    unsigned char byte = 0;
  };
  int32_t Child(int32_t node, unsigned char byte) const;
  void Insert(const std::string& stop, int32_t index);
  void Link();

  std::vector<Node> nodes_;
  std::array<int32_t, 256> root_ = {};  // children of the root, 0 where there is none
  int32_t state_ = 0;
};

}  // namespace fox
