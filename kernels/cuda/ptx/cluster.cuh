// Clusters of thread blocks (Hopper): their size, their barrier and each other's shared memory.
// Does nothing in code for older devices, where kernels must not be launched as clusters. For .cu
// files only.
//
// Data that a block reads and another block of its cluster wrote, and the operation that publishes
// it (no tool finds a missing release):
//
// | kernel | data | memory | published by | |---|---|---|---| | attention/decode/cluster.cu |
// partial results | the reader's shared | SendToBlock | | linear/cluster_gemm_epilogue.cuh |
// partial sums | the writer's shared | ArriveReleasingShared | | sampling/radix_select.cuh | sums,
// candidates | the writer's shared | ArriveReleasingShared | | sampling/sample.cu, ProcessLogits |
// logits | global | ReleaseAll, then the same |
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/ptx/mbarrier.cuh"
#include "kernels/cuda/ptx/shared_memory.cuh"

// In a __global__ function's declaration.
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
#define FOX_CLUSTER(blocks) __cluster_dims__(blocks, 1, 1)
#else
#define FOX_CLUSTER(blocks)
#endif

namespace fox::cuda {

// Arrive at and wait for the barrier of all the cluster's threads; threads that have ended count as
// arrived. A thread waits before it arrives again. Relaxed: publishes only that the block has
// started, and does not wait for loads of other blocks' memory whose values are unused so far.
__device__ __forceinline__ void ArriveAtClusterRelaxed() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
#endif
}

// The thread's next arrival publishes all its writes, including global memory: a fence of half a
// microsecond.
__device__ __forceinline__ void ReleaseAll() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("fence.acq_rel.cluster;" ::: "memory");
#endif
}

// Publishes the thread's writes to its block's shared memory, but not to global memory, if PTX
// distinguishes them (8.6).
__device__ __forceinline__ void ArriveReleasingShared() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#if CUDART_VERSION >= 12080
  asm volatile("fence.release.sync_restrict::shared::cta.cluster;" ::: "memory");
#else
  ReleaseAll();
#endif
  ArriveAtClusterRelaxed();
#endif
}

__device__ __forceinline__ void WaitForCluster() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
#endif
}

// *address = value in the shared memory of the cluster's block `rank`, which must have started and
// not ended; the four bytes count at its `barrier`, which must be initialised for one arrival.
__device__ __forceinline__ void SendToBlock(float* address, int rank, float value,
                                            Mbarrier* barrier) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile(
      "{\n.reg .b32 there, counted;\n"
      "mapa.shared::cluster.u32 there, %0, %2;\n"
      "mapa.shared::cluster.u32 counted, %1, %2;\n"
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.f32 [there], %3, [counted];\n}" ::
          "r"(SharedAddress(address)),
      "r"(SharedAddress(barrier)), "r"(rank), "f"(value)
      : "memory");
#endif
}

// Returns when `bytes` have been sent to this block. Called once, by all its threads.
__device__ __forceinline__ void WaitForSent(Mbarrier* barrier, int bytes) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  if (threadIdx.x == 0) barrier->ArriveAndExpect(static_cast<uint32_t>(bytes));
  barrier->Wait(0);
#endif
}

// *address in the shared memory of the cluster's block `rank`, which must have started and not
// ended.
template <typename T>
__device__ __forceinline__ T LoadFromBlock(const T* address, int rank) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8);
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  uint32_t there;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
               : "=r"(there)
               : "r"(SharedAddress(address)), "r"(rank));
  std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t> value;
  if constexpr (sizeof(T) == 4) {
    asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(value) : "r"(there) : "memory");
  } else {
    asm volatile("ld.shared::cluster.u64 %0, [%1];" : "=l"(value) : "r"(there) : "memory");
  }
  return static_cast<T>(value);
#else
  return *address;
#endif
}

// Four floats, 16-byte aligned, in the shared memory of the cluster's block `rank`, as above.
__device__ __forceinline__ float4 LoadFourFromBlock(const float* address, int rank) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  float4 x;
  asm volatile(
      "{\n.reg .b32 there;\n"
      "mapa.shared::cluster.u32 there, %4, %5;\n"
      "ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [there];\n}"
      : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w)
      : "r"(SharedAddress(address)), "r"(rank)
      : "memory");
  return x;
#else
  return *reinterpret_cast<const float4*>(address);
#endif
}

}  // namespace fox::cuda
