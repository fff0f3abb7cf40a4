// Shared memory barriers that count arrivals and bytes of bulk copies (mbarrier), Hopper's way of
// handing tiles from one warp to another. For .cu files only. Read tma.h next.
#pragma once

#include <cstdint>

namespace fox::cuda {

__device__ __forceinline__ uint32_t SharedAddress(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// A barrier of phases 0, 1, 0, ...: a phase ends when its arrivals and its bytes are all there.
// Arriving releases what the thread wrote before, waiting acquires it.
struct Mbarrier {
  uint64_t state;

  __device__ __forceinline__ void Init(uint32_t arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(SharedAddress(&state)),
                 "r"(arrivals)
                 : "memory");
  }
  __device__ __forceinline__ void Arrive() {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(SharedAddress(&state))
                 : "memory");
  }
  // One arrival; the phase also waits for `bytes` from the copy engine.
  __device__ __forceinline__ void ArriveAndExpect(uint32_t bytes) {
    asm volatile(
        "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(SharedAddress(&state)),
        "r"(bytes)
        : "memory");
  }
  // Returns when the phase of this parity has ended; parity 1 passes on a new barrier.
  __device__ __forceinline__ void Wait(uint32_t parity) {
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "again:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra again;\n"
        "}\n" ::"r"(SharedAddress(&state)),
        "r"(parity)
        : "memory");
  }
};

// Makes initialised barriers known to the copy engine; a barrier of the block must follow.
__device__ __forceinline__ void PublishBarriers() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

}  // namespace fox::cuda
