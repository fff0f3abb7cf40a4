// SwapSpace: host memory for sequences that are swapped out, given out in contiguous ranges, first
// fit. It decides where; the executor has the memory. A range may be given out again as soon as the
// plan that last reads it has been made: plans run in order. Read scheduler.h next.
#pragma once

#include <cstdint>
#include <map>
#include <optional>

namespace fox {

class SwapSpace {
 public:
  explicit SwapSpace(int64_t bytes) : bytes_(bytes) {}

  int64_t used() const { return used_; }
  int64_t ranges() const { return static_cast<int64_t>(taken_.size()); }
  // The offset of so many bytes. Nothing: there is no such gap. REQUIRES: bytes > 0.
  std::optional<int64_t> Take(int64_t bytes);
  // REQUIRES: a range was taken there.
  void Give(int64_t offset);

 private:
  const int64_t bytes_;
  int64_t used_ = 0;
  std::map<int64_t, int64_t> taken_;  // bytes by offset
};

}  // namespace fox
