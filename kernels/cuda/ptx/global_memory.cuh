// Accesses to global memory that C++ cannot express: by cache level, and prefetches. None uses the
// read-only path (.nc), because under programmatic dependent launch the previous kernel may still
// be writing. The compiler moves none across WaitOnDependencies().
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/core/host_device.h"

namespace fox::cuda {

// Prefetches into the second-level cache.
__device__ __forceinline__ void Prefetch(const void* address) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(address));
}

// Computes an address in global memory here and not where it is used, as ComputeNow of a number
// does (primitives/warp.cuh).
template <typename T>
__device__ __forceinline__ void ComputeNow(T*& address) {
  size_t global = __cvta_generic_to_global(address);
  asm volatile("" : "+l"(global));
  address = static_cast<T*>(__cvta_global_to_generic(global));
}

// For data that this block does not read again: does not occupy the first-level cache.
template <typename T = uint4>
__device__ __forceinline__ T LoadOnce(const void* address) {
  T x;
  if constexpr (sizeof(T) == 16) {
    asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                 : "l"(address));
  } else {
    static_assert(sizeof(T) == 8);
    asm volatile("ld.global.L1::no_allocate.v2.u32 {%0, %1}, [%2];"
                 : "=r"(x.x), "=r"(x.y)
                 : "l"(address));
  }
  return x;
}

// Loads from the second-level cache, which all blocks share: for loads before WaitOnDependencies()
// and of other blocks' stores of the same kernel. Behind the wait plain loads see all earlier
// kernels' stores, even if the first-level cache held older lines (launch_test.cu).
template <typename T>
__device__ __forceinline__ T LoadCoherent(const T* address) {
  static_assert(sizeof(T) == 1 || sizeof(T) == 2 || sizeof(T) == 4 || sizeof(T) == 8 ||
                sizeof(T) == 16);
  if constexpr (sizeof(T) == 16) {
    uint4 bits;
    asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(bits.x), "=r"(bits.y), "=r"(bits.z), "=r"(bits.w)
                 : "l"(address));
    return BitCast<T>(bits);
  } else if constexpr (sizeof(T) == 4) {
    uint32_t bits;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(bits) : "l"(address));
    return BitCast<T>(bits);
  } else if constexpr (sizeof(T) == 2) {
    uint16_t bits;
    asm volatile("ld.relaxed.gpu.global.u16 %0, [%1];" : "=h"(bits) : "l"(address));
    return BitCast<T>(bits);
  } else if constexpr (sizeof(T) == 1) {
    uint32_t bits;
    asm volatile("ld.relaxed.gpu.global.u8 %0, [%1];" : "=r"(bits) : "l"(address));
    return static_cast<T>(bits);
  } else {
    uint64_t bits;
    asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(bits) : "l"(address));
    return BitCast<T>(bits);
  }
}

// Adds and returns the previous value. Releases the writes that this thread has made or seen, and
// acquires the writes that other threads released here.
__device__ __forceinline__ int32_t AtomicAddAcqRel(int32_t* address, int32_t x) {
  int32_t before;
  asm volatile("atom.acq_rel.gpu.global.add.s32 %0, [%1], %2;"
               : "=r"(before)
               : "l"(address), "r"(x)
               : "memory");
  return before;
}

// A store that other blocks' LoadCoherent sees, after some time.
template <typename T>
__device__ __forceinline__ void StoreCoherent(T* address, const T& value) {
  static_assert(sizeof(T) == 8 || sizeof(T) == 16);
  if constexpr (sizeof(T) == 16) {
    const auto bits = BitCast<uint4>(value);
    asm volatile("st.relaxed.gpu.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(address), "r"(bits.x),
                 "r"(bits.y), "r"(bits.z), "r"(bits.w)
                 : "memory");
  } else {
    const auto bits = BitCast<uint2>(value);
    asm volatile("st.relaxed.gpu.global.v2.u32 [%0], {%1, %2};" ::"l"(address), "r"(bits.x),
                 "r"(bits.y)
                 : "memory");
  }
}

// Flags between blocks: the loading thread sees the storing thread's earlier writes.
__device__ __forceinline__ int LoadAcquire(const int* address) {
  int value;
  asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(value) : "l"(address) : "memory");
  return value;
}
__device__ __forceinline__ void StoreRelease(int* address, int value) {
  asm volatile("st.release.gpu.global.s32 [%0], %1;" ::"l"(address), "r"(value) : "memory");
}
// Orders this thread's accesses to all memory by the copy engine with its ordinary ones.
__device__ __forceinline__ void FenceAsyncProxyAll() {
  asm volatile("fence.proxy.async;" ::: "memory");
}

}  // namespace fox::cuda
