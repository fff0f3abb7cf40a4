// Barriers among some of a block's threads, whole warps. __syncthreads() uses barrier 0; 1 to 15
// are free. An SM has 64, and a kernel whose barriers the compiler cannot number takes 16 a block,
// so that no more than four blocks fit.
#pragma once

#include <cstdint>

namespace fox::cuda {

// Returns when `kThreads` threads have reached it or called ArriveAtBarrier.
template <int kThreads>
__device__ __forceinline__ void SyncThreads(int barrier = 1) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "n"(kThreads) : "memory");
}

template <int kThreads>
__device__ __forceinline__ void ArriveAtBarrier(int barrier) {
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "n"(kThreads) : "memory");
}

// Where warps take turns: SyncThreads by the warp whose turn it is, ArriveAtBarrier by the others,
// at barrier 1 + turn, turn < kTurns. The branches give the compiler its number.
template <int kThreads, int kTurns>
__device__ __forceinline__ void MeetInTurn(int turn, bool own) {
#pragma unroll
  for (int i = 0; i < kTurns; ++i) {
    if (i != turn) continue;
    if (own) {
      SyncThreads<kThreads>(1 + i);
    } else {
      ArriveAtBarrier<kThreads>(1 + i);
    }
  }
}

// SyncThreads; true if `vote` holds in any of the threads.
template <int kThreads>
__device__ __forceinline__ bool NamedBarrierAny(int barrier, bool vote) {
  uint32_t any;
  asm volatile(
      "{\n.reg .pred in, out;\nsetp.ne.u32 in, %1, 0;\n"
      "bar.red.or.pred out, %2, %3, in;\nselp.u32 %0, 1, 0, out;\n}\n"
      : "=r"(any)
      : "r"(static_cast<uint32_t>(vote)), "r"(barrier), "n"(kThreads)
      : "memory");
  return any != 0;
}

}  // namespace fox::cuda
