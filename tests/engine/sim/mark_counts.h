// MarkCounts: how often each kind of event happened in simulated days. Mark is an enum whose last
// value is kCount.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <sstream>
#include <string>

namespace fox::sim {

template <typename Mark>
class MarkCounts {
 public:
  int64_t& operator[](Mark mark) { return counts_[static_cast<size_t>(mark)]; }
  int64_t operator[](Mark mark) const { return counts_[static_cast<size_t>(mark)]; }
  void Add(const MarkCounts& other) {
    for (size_t i = 0; i < counts_.size(); ++i) counts_[i] += other.counts_[i];
  }

 private:
  std::array<int64_t, static_cast<size_t>(Mark::kCount)> counts_ = {};
};

// The mark's word in `names`, which has one for each mark in order.
template <typename Mark>
std::string NameIn(const char* names, Mark mark) {
  std::istringstream words(names);
  std::string name;
  for (int i = 0; i <= static_cast<int>(mark); ++i) words >> name;
  return name;
}

}  // namespace fox::sim
