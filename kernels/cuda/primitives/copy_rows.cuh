// Copies rows from global to shared memory, by a warp, and signals their arrival through an
// mbarrier: by Hopper's bulk copy or, on older devices, by many 16-byte copies.
#pragma once

#include <cstdint>

#include "kernels/cuda/primitives/warp.cuh"
#include "kernels/cuda/ptx/mbarrier.cuh"

namespace fox::cuda {

// Arrivals of one BulkCopyRows that complete a phase of its barrier.
__device__ __forceinline__ int BulkCopyRowsArrivals() {
#if __CUDA_ARCH__ >= 900
  return 1;
#else
  return kWarp;
#endif
}

// One whole warp copies `rows` (at most 32) rows of `bytes` each, which complete on `barrier`.
// Everything is 16-byte aligned. The data are read once, so the L2 evicts them first.
__device__ __forceinline__ void BulkCopyRows(const void* global, int64_t global_stride,
                                             void* shared, int shared_stride, int rows, int bytes,
                                             Mbarrier* barrier) {
  const int lane = Lane();
  const char* from = static_cast<const char*>(global);
  const uint32_t to = SharedAddress(shared);
#if __CUDA_ARCH__ >= 900
  if (lane == 0) barrier->ArriveAndExpect(static_cast<uint32_t>(rows * bytes));
  __syncwarp();
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  if (lane < rows) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
        "[%0], [%1], %2, [%3], %4;" ::"r"(to + static_cast<uint32_t>(lane * shared_stride)),
        "l"(__cvta_generic_to_global(from + lane * global_stride)), "r"(bytes),
        "r"(SharedAddress(barrier)), "l"(policy)
        : "memory");
  }
#else
  const int row_pieces = bytes / 16;
  for (int i = lane; i < rows * row_pieces; i += kWarp) {
    const int row = i / row_pieces, piece = i % row_pieces;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(
                     to + static_cast<uint32_t>(row * shared_stride + piece * 16)),
                 "l"(__cvta_generic_to_global(from + row * global_stride + piece * 16))
                 : "memory");
  }
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(SharedAddress(barrier))
               : "memory");
#endif
}

}  // namespace fox::cuda
