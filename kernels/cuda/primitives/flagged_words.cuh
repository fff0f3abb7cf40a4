// Values handed from block to block of a running kernel without a fence: each lies in a word of 64
// bits beside the number of the launch that stored it, its epoch. Words are stored and loaded
// whole, so a reader that finds the epoch has the value.
#pragma once

#include <cstdint>

namespace fox::cuda {

__device__ __forceinline__ void StoreFlagged(uint64_t* to, uint32_t value, uint32_t epoch) {
  const uint64_t word = static_cast<uint64_t>(epoch) << 32 | value;
  asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(to), "l"(word) : "memory");
}

// Waits for kCount values, an even number of them; `from` is 16-byte aligned.
template <int kCount>
__device__ __forceinline__ void LoadFlagged(const uint64_t* from, uint32_t epoch,
                                            uint32_t (&values)[kCount]) {
  static_assert(kCount % 2 == 0);
  bool all;
  do {
    uint64_t words[kCount];
#pragma unroll
    for (int i = 0; i < kCount; i += 2) {
      asm volatile("ld.relaxed.gpu.global.v2.u64 {%0, %1}, [%2];"
                   : "=l"(words[i]), "=l"(words[i + 1])
                   : "l"(from + i)
                   : "memory");
    }
    all = true;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      values[i] = static_cast<uint32_t>(words[i]);
      all = all && static_cast<uint32_t>(words[i] >> 32) == epoch;
    }
  } while (!all);
}

}  // namespace fox::cuda
