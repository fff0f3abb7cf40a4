// SwapSpace: hands out ranges of the executor's host memory for swapped sequences. A range may be
// handed out again once the plan that last reads it is made, because plans run in order. Read
// scheduler.h next.
#pragma once

#include <cstdint>
#include <map>
#include <optional>

#include "kernels/core/check.h"

namespace fox {

class SwapSpace {
 public:
  explicit SwapSpace(int64_t bytes) : bytes_(bytes) {}

  int64_t used() const { return used_; }
  int64_t ranges() const { return static_cast<int64_t>(taken_.size()); }
  // Takes a range of `bytes` and returns its offset. None: there is no gap of that size. REQUIRES:
  // bytes > 0.
  std::optional<int64_t> Take(int64_t bytes) {
    FOX_CHECK(bytes > 0);
    int64_t begin = 0;
    for (const auto& [taken, size] : taken_) {
      if (taken - begin >= bytes) break;
      begin = taken + size;
    }
    if (bytes_ - begin < bytes) return std::nullopt;
    FOX_CHECK(taken_.emplace(begin, bytes).second);
    used_ += bytes;
    FOX_CHECK(used_ <= bytes_);
    return begin;
  }
  void Give(int64_t offset) {
    const auto found = taken_.find(offset);
    FOX_CHECK(found != taken_.end());
    used_ -= found->second;
    taken_.erase(found);
  }

 private:
  const int64_t bytes_;
  int64_t used_ = 0;
  std::map<int64_t, int64_t> taken_;  // offset to bytes
};

}  // namespace fox
