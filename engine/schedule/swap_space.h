// SwapSpace: host memory for sequences that are swapped out, given out in contiguous ranges, first
// fit. It decides where; the executor has the memory.
//
// A range may be given out again as soon as the plan that last reads it has been made: plans run in
// order, and on a GPU only their kernels, which run in that order, too, touch the memory.
// But within one plan all swap out before any swaps in, so what a plan swaps in keeps its range
// until the plan is complete. Read scheduler.h next.
#pragma once

#include <cstdint>
#include <map>
#include <optional>

namespace fox {

struct SwapRange {
  int64_t begin = 0, bytes = 0;
};

class SwapSpace {
 public:
  explicit SwapSpace(int64_t bytes) : bytes_(bytes) {}

  int64_t bytes() const { return bytes_; }
  int64_t used() const { return used_; }

  // Nothing: there is no gap of so many bytes. REQUIRES: bytes > 0.
  std::optional<SwapRange> Take(int64_t bytes);
  // Gives the end of a range back; `bytes` of it are left, at least one. REQUIRES: it was taken.
  void Trim(SwapRange* range, int64_t bytes);
  void Give(const SwapRange& range);

 private:
  const int64_t bytes_;
  int64_t used_ = 0;
  std::map<int64_t, int64_t> taken_;  // bytes by begin
};

}  // namespace fox
