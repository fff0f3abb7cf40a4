// Random numbers in bulk. Equal seeds give equal numbers for any number of threads. Zeros would run
// faster on a GPU than data does, and a sequential generator would take longer than the benchmark.
#pragma once

#include <cstdint>

#include "kernels/core/dtype.h"

namespace fox {

// Fills `out` with mean + scale * x, where x is sampled from a table of 65,536 standard normal
// numbers. Uses all threads. T is BFloat16, float or double.
template <typename T>
void FillNormal(T* out, int64_t count, uint64_t seed, float mean, float scale);

}  // namespace fox
