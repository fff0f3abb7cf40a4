// Up to how many rows the kernels of a step ask for the largest share of shared memory, so that
// they can overlap on an SM (SmemConfig in launch.h).
#pragma once

#include <cstdint>

namespace fox::cuda {

inline constexpr int64_t kOverlapRows = 64;

}  // namespace fox::cuda
