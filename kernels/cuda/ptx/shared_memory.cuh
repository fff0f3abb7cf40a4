// Shared memory as PTX sees it: 32-bit addresses, and the fence between ordinary accesses and
// accesses by the copy engine.
#pragma once

#include <cstdint>

namespace fox::cuda {

__device__ __forceinline__ uint32_t SharedAddress(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// Orders this thread's ordinary accesses to shared memory before later ones by the copy engine and
// the tensor cores. Nothing before compute capability 9.0, which has neither.
__device__ __forceinline__ void FenceAsyncProxy() {
#if __CUDA_ARCH__ >= 900
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

// Stores four 8x8 matrices of 16-bit elements: lanes 8 i to 8 i + 7 give the addresses of rows 0 to
// 7 of matrix i, 16 bytes each; lane t holds of it, in the i-th word, elements (t / 4, 2 (t % 4))
// and (t / 4, 2 (t % 4) + 1). Hopper.
__device__ __forceinline__ void StoreMatrices(uint32_t address, const uint4& words) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
               "r"(words.x), "r"(words.y), "r"(words.z), "r"(words.w)
               : "memory");
}

// Stores four transposed 8x8 matrices, as above: lane t holds elements (2 (t % 4), t / 4) and (2 (t
// % 4) + 1, t / 4) of each.
__device__ __forceinline__ void StoreTransposed(uint32_t address, uint32_t w0, uint32_t w1,
                                                uint32_t w2, uint32_t w3) {
  asm volatile(
      "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
      "r"(w0), "r"(w1), "r"(w2), "r"(w3)
      : "memory");
}

}  // namespace fox::cuda
