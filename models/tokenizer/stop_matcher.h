// StopMatcher: finds the first of several stop strings in a growing text. Each is searched by the
// algorithm of Knuth, Morris and Pratt, with a few comparisons for each byte. Invariant: held() is
// the length of the longest end of the text that begins a stop string, so all text before it is
// safe to show. Read text_assembler.h next.
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

  // Adds one byte. Returns the index of the longest stop string that ends with it, the first of
  // equal ones; -1: none.
  int Push(char byte);
  bool empty() const { return stops_.empty(); }
  // The bytes of the stop string of an index.
  size_t size(int index) const { return stops_[static_cast<size_t>(index)].text.size(); }
  // Bytes that may still become a stop string.
  size_t held() const { return held_; }

 private:
  struct Stop {
    std::string text;
    std::vector<size_t> border;  // [n]: longest proper end of the first n bytes that begins `text`
    size_t matched = 0;          // bytes of `text` at the end of the text so far
  };
  std::vector<Stop> stops_;
  size_t held_ = 0;
};

}  // namespace fox
