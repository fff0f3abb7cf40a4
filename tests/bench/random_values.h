// Random numbers in bulk: the same for the same seed, whatever the number of threads. Zeros would
// run faster on a GPU than data does, and generators that sample one number after another would
// take longer than what they are sampled for.
#pragma once

#include <cstdint>

#include "kernels/core/dtype.h"

namespace fox {

// mean + scale * x, x sampled from a table of 65536 standard normal numbers. With all threads. T is
// BFloat16, float or double.
template <typename T>
void FillNormal(T* out, int64_t count, uint64_t seed, float mean, float scale);

}  // namespace fox
