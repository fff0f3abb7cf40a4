// Random numbers in bulk: the same for the same seed, whatever the number of threads. Zeros would
// run faster on a GPU than data does, and generators that sample one number after another would
// take longer than what they are sampled for.
#pragma once

#include <cstdint>

#include "kernels/core/dtype.h"

namespace fox {

// splitmix64's output function: a good hash of a counter.
constexpr uint64_t Mix(uint64_t z) {
  z = (z + 0x9e3779b97f4a7c15u);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

// mean + scale * x, x sampled from a table of 65536 standard normal numbers. With all threads.
void FillNormal(BFloat16* out, int64_t count, uint64_t seed, float mean, float scale);
void FillNormal(float* out, int64_t count, uint64_t seed, float mean, float scale);

}  // namespace fox
