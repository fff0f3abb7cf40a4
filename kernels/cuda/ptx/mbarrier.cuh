// Shared memory barriers that count arrivals (mbarrier) and, on Hopper, the bytes of bulk copies.
// Warps pass tiles to each other by them. Read tma.cuh next.
#pragma once

#include <cstdint>

#include "kernels/cuda/ptx/shared_memory.cuh"

namespace fox::cuda {

// A barrier of phases 0, 1, 0, ...: a phase ends when all its arrivals and bytes have come. An
// arrival releases the thread's writes, waiting acquires them.
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
  // Hopper: the phase also waits for `bytes` from the copy engine. Before the phase's last arrival.
  __device__ __forceinline__ void Expect(uint32_t bytes) {
    asm volatile(
        "mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(SharedAddress(&state)),
        "r"(bytes)
        : "memory");
  }
  // Hopper: both in one.
  __device__ __forceinline__ void ArriveAndExpect(uint32_t bytes) {
    asm volatile(
        "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(SharedAddress(&state)),
        "r"(bytes)
        : "memory");
  }
  // True if the phase of this parity has ended. On a new barrier the phase of parity 1 has ended.
  // Hopper waits a while for the end.
  __device__ __forceinline__ bool HasEnded(uint32_t parity) const {
    uint32_t ended;
    asm volatile(
        "{\n.reg .pred p;\n"
#if __CUDA_ARCH__ >= 900
        "mbarrier.try_wait"
#else
        "mbarrier.test_wait"
#endif
        ".parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
        : "=r"(ended)
        : "r"(SharedAddress(&state)), "r"(parity)
        : "memory");
    return ended != 0;
  }
  // Hopper: returns when the phase has ended. The loop is in PTX: the compiler can neither unroll
  // nor duplicate it together with the code around it.
  __device__ __forceinline__ void Wait(uint32_t parity) {
    asm volatile(
        "{\n.reg .pred done;\nagain:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra again;\n}\n" ::"r"(SharedAddress(&state)),
        "r"(parity)
        : "memory");
  }
};

// Makes initialised barriers known to the copy engine; a barrier of the block must follow.
__device__ __forceinline__ void PublishBarriers() {
#if __CUDA_ARCH__ >= 900
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}

}  // namespace fox::cuda
