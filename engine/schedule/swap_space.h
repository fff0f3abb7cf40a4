// SwapSpace: where in the executor's host memory sequences are swapped out to. A range may be given
// out again as soon as the plan that last reads it has been made. Read scheduler.h next.
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
  // The offset of so many bytes. Nothing: there is no such gap. REQUIRES: bytes > 0.
  std::optional<int64_t> Take(int64_t bytes) {
    FOX_CHECK(bytes > 0);
    int64_t begin = 0;
    for (const auto& [taken, size] : taken_) {
      if (taken - begin >= bytes) break;
      begin = taken + size;
    }
    if (bytes_ - begin < bytes) return std::nullopt;
    taken_.emplace(begin, bytes);
    used_ += bytes;
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
  std::map<int64_t, int64_t> taken_;  // bytes by offset
};

}  // namespace fox
