// Bulk tensor copies (TMA); FenceAsyncProxy goes with them.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "kernels/cuda/ptx/mbarrier.cuh"

namespace fox::cuda {

__device__ __forceinline__ void PrefetchTensorMap(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// Copies the map's box at (column, row) to `shared`; its bytes count towards `barrier`. What lies
// outside the tensor arrives as zeros. One thread calls.
__device__ __forceinline__ void TmaLoad2D(void* shared, const CUtensorMap* map, int column, int row,
                                          Mbarrier* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3}], [%4];" ::"r"(SharedAddress(shared)),
      "l"(map), "r"(column), "r"(row), "r"(SharedAddress(&barrier->state))
      : "memory");
}

// The same of a map of four dimensions.
__device__ __forceinline__ void TmaLoad4D(void* shared, const CUtensorMap* map, int column, int row,
                                          int plane, int volume, Mbarrier* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3, %4, %5}], [%6];" ::"r"(SharedAddress(shared)),
      "l"(map), "r"(column), "r"(row), "r"(plane), "r"(volume), "r"(SharedAddress(&barrier->state))
      : "memory");
}

}  // namespace fox::cuda
