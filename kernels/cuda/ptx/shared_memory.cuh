// Shared memory as PTX sees it: 32-bit addresses, and the fence between ordinary accesses and those
// of the copy engine.
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

}  // namespace fox::cuda
