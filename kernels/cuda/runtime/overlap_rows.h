// Up to how many rows the kernels of a step ask for the largest share of shared memory, so that
// they can overlap on an SM (SmemConfig in launch.h).
#pragma once

#include <cstdint>
#include <cstdlib>

namespace fox::cuda {

// FOX_OVERLAP_ROWS, an experiment's switch.
inline int64_t OverlapRows() {
  static const int64_t rows = [] {
    const char* value = std::getenv("FOX_OVERLAP_ROWS");
    return value == nullptr ? int64_t{64} : std::atoll(value);
  }();
  return rows;
}

}  // namespace fox::cuda
