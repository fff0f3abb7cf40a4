// Ranges, first fit. See swap_space.h.
#include "engine/schedule/swap_space.h"

#include "kernels/core/check.h"

namespace fox {

std::optional<int64_t> SwapSpace::Take(int64_t bytes) {
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

void SwapSpace::Give(int64_t offset) {
  const auto found = taken_.find(offset);
  FOX_CHECK(found != taken_.end());
  used_ -= found->second;
  taken_.erase(found);
}

}  // namespace fox
