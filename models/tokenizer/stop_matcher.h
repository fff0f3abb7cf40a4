// StopMatcher: finds the first of several stop strings in a growing text, each by Knuth, Morris and
// Pratt: a few comparisons a byte and string. Invariant: held() is the longest end of the text so
// far that begins a stop string, so all before it is safe to show. Read text_assembler.h next.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace fox {

// Not thread-safe.
class StopMatcher {
 public:
  // REQUIRES: no string is empty.
  explicit StopMatcher(const std::vector<std::string>& stops);

  // Adds one byte. Returns the index of the longest stop string that ends with it, or -1; of equal
  // ones the first.
  int Push(char byte);
  // Bytes that may still become a stop string.
  size_t held() const { return held_; }

 private:
  struct Stop {
    std::string text;
    std::vector<size_t> border;  // of its first n bytes: the longest proper end that begins it
    size_t matched = 0;          // of its bytes at the end of the text so far
  };
  std::vector<Stop> stops_;
  size_t held_ = 0;
};

}  // namespace fox
