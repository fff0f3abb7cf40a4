// Asynchronous copies from global to shared memory by single threads (cp.async): a thread closes
// groups of its copies and waits for them in order.
#pragma once

#include <cstdint>

#include "kernels/cuda/ptx/mbarrier.cuh"

namespace fox::cuda {

__device__ __forceinline__ void CopyAsync4(uint32_t shared, const void* global) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared),
               "l"(__cvta_generic_to_global(global))
               : "memory");
}

__device__ __forceinline__ void CopyAsync8(uint32_t shared, const void* global) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(shared),
               "l"(__cvta_generic_to_global(global))
               : "memory");
}

__device__ __forceinline__ void CopyAsync16(uint32_t shared, const void* global) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(shared),
               "l"(__cvta_generic_to_global(global))
               : "memory");
}

// Without `copy` writes 16 zero bytes and reads nothing.
__device__ __forceinline__ void CopyAsync16OrZero(uint32_t shared, const void* global, bool copy) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(shared),
               "l"(__cvta_generic_to_global(global)), "r"(copy ? 16 : 0)
               : "memory");
}

// The thread arrives when all its copies so far have; the barrier counts on that arrival.
__device__ __forceinline__ void ArriveWhenCopied(Mbarrier* barrier) {
  asm volatile(
      "cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(SharedAddress(&barrier->state))
      : "memory");
}

__device__ __forceinline__ void CommitCopies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

// Returns when all but the thread's last `kPending` groups have arrived.
template <int kPending>
__device__ __forceinline__ void WaitCopies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

}  // namespace fox::cuda
