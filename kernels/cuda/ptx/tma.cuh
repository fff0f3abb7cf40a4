// Bulk copies by the copy engine (TMA), tensors and plain bytes, and its additions to global
// memory; FenceAsyncProxy goes with them.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "kernels/cuda/ptx/mbarrier.cuh"

namespace fox::cuda {

__device__ __forceinline__ void PrefetchTensorMap(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// Copies the map's box at (column, row) to `shared`; its bytes count towards `barrier`. Elements
// outside the tensor become zeros. By one thread.
__device__ __forceinline__ void TmaLoad2D(void* shared, const CUtensorMap* map, int column, int row,
                                          Mbarrier* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3}], [%4];" ::"r"(SharedAddress(shared)),
      "l"(map), "r"(column), "r"(row), "r"(SharedAddress(&barrier->state))
      : "memory");
}

// TmaLoad2D with four coordinates, fastest first.
__device__ __forceinline__ void TmaLoad4D(void* shared, const CUtensorMap* map, int x, int y, int z,
                                          int w, Mbarrier* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3, %4, %5}], [%6];" ::"r"(SharedAddress(shared)),
      "l"(map), "r"(x), "r"(y), "r"(z), "r"(w), "r"(SharedAddress(&barrier->state))
      : "memory");
}

// TmaLoad4D of data that are read once: the L2 evicts them first.
__device__ __forceinline__ void TmaLoad4DOnce(void* shared, const CUtensorMap* map, int x, int y,
                                              int z, int w, Mbarrier* barrier) {
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%2, %3, %4, %5}], [%6], %7;" ::"r"(SharedAddress(shared)),
      "l"(map), "r"(x), "r"(y), "r"(z), "r"(w), "r"(SharedAddress(&barrier->state)), "l"(policy)
      : "memory");
}

// Copies `bytes`, a multiple of 16, between addresses aligned to 16.
__device__ __forceinline__ void BulkLoad(void* shared, const void* global, uint32_t bytes,
                                         Mbarrier* barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(SharedAddress(shared)),
      "l"(__cvta_generic_to_global(global)), "r"(bytes), "r"(SharedAddress(&barrier->state))
      : "memory");
}

// Copies `shared` to the part of the map's box at (column, row) that is in the tensor. Rows must
// have a multiple of 16 bytes, else their ends would not be copied. One thread issues copies,
// closes groups of them and waits for them.
__device__ __forceinline__ void TmaStore2D(const CUtensorMap* map, int column, int row,
                                           const void* shared) {
  asm volatile(
      "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%1, %2}], [%3];" ::"l"(map),
      "r"(column), "r"(row), "r"(SharedAddress(shared))
      : "memory");
}

// Adds float32 in `shared` to the map's box at (column, row), each element atomically; otherwise
// as TmaStore2D.
__device__ __forceinline__ void TmaAdd2D(const CUtensorMap* map, int column, int row,
                                         const void* shared) {
  asm volatile(
      "cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group [%0, {%1, %2}], "
      "[%3];" ::"l"(map),
      "r"(column), "r"(row), "r"(SharedAddress(shared))
      : "memory");
}

__device__ __forceinline__ void BulkAdd(float* global, const float* shared, uint32_t bytes) {
  asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(
                   __cvta_generic_to_global(global)),
               "r"(SharedAddress(shared)), "r"(bytes)
               : "memory");
}

__device__ __forceinline__ void BulkCommit() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
// Waits until shared memory has been read and may be written again.
__device__ __forceinline__ void BulkWaitRead() {
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}
// Waits until global memory has been written.
__device__ __forceinline__ void BulkWait() {
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

}  // namespace fox::cuda
