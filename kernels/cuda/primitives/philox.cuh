// Philox4x32-10 on the device (Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as
// 1, 2, 3", SC 2011): the same numbers as engine/philox.h, whose std::array device code cannot use.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace fox::cuda {

// Uniform in [0, 1) with 53 bits, for the token at `position` of a request with `seed`: key and
// counter of the generator.
__host__ __device__ inline double PhiloxUniform(uint64_t seed, uint64_t position) {
  constexpr int kRounds = 10;
  uint32_t key0 = static_cast<uint32_t>(seed), key1 = static_cast<uint32_t>(seed >> 32);
  uint32_t x0 = static_cast<uint32_t>(position), x1 = static_cast<uint32_t>(position >> 32);
  uint32_t x2 = 0, x3 = 0;
  for (int round = 0; round < kRounds; ++round) {
    const uint64_t a = uint64_t{0xD2511F53} * x0;
    const uint64_t b = uint64_t{0xCD9E8D57} * x2;
    x0 = static_cast<uint32_t>(b >> 32) ^ x1 ^ key0;
    x1 = static_cast<uint32_t>(b);
    x2 = static_cast<uint32_t>(a >> 32) ^ x3 ^ key1;
    x3 = static_cast<uint32_t>(a);
    key0 += 0x9E3779B9;  // the golden ratio
    key1 += 0xBB67AE85;  // sqrt(3) - 1
  }
  const uint64_t bits = (uint64_t{x1} << 32) | x0;
  return static_cast<double>(bits >> 11) * 0x1.0p-53;
}

}  // namespace fox::cuda
