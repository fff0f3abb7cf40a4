// Ranges, first fit. See swap_space.h.
#include "engine/schedule/swap_space.h"

#include "kernels/core/check.h"

namespace fox {

std::optional<SwapRange> SwapSpace::Take(int64_t bytes) {
  FOX_CHECK(bytes > 0);
  int64_t begin = 0;
  for (const auto& [taken, size] : taken_) {
    if (taken - begin >= bytes) break;
    begin = taken + size;
  }
  if (bytes_ - begin < bytes) return std::nullopt;
  taken_.emplace(begin, bytes);
  used_ += bytes;
  return SwapRange{begin, bytes};
}

void SwapSpace::Trim(SwapRange* range, int64_t bytes) {
  const auto found = taken_.find(range->begin);
  FOX_CHECK(found != taken_.end() && found->second == range->bytes);
  FOX_CHECK(bytes > 0 && bytes <= range->bytes);
  used_ -= range->bytes - bytes;
  found->second = range->bytes = bytes;
}

void SwapSpace::Give(const SwapRange& range) {
  const auto found = taken_.find(range.begin);
  FOX_CHECK(found != taken_.end() && found->second == range.bytes);
  taken_.erase(found);
  used_ -= range.bytes;
}

}  // namespace fox
