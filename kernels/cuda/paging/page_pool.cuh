// The free stack on the device: checked pops and pushes. Takes and gives are separate kernels of a
// step, so the stack is only ever pushed to or popped from.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "kernels/cuda/primitives/warp.cuh"
#include "kernels/paged_kv.h"

namespace fox::cuda {

// The pool's checks, in release builds too: a broken promise is reported with the step's results
// and touches no memory outside the pool.
__device__ __forceinline__ void Report(const PagedKv& kv, PoolFault fault) {
  atomicCAS(reinterpret_cast<int*>(kv.pool_fault), 0, static_cast<int>(fault));
}

__device__ __forceinline__ bool Exists(const PagedKv& kv, int32_t page) {
  return page >= 0 && page < kv.shape.num_pages;
}

__device__ __forceinline__ int32_t FreePages(const PagedKv& kv) {
  return min(max(*kv.free_count, 0), kv.shape.num_pages);
}

// A page from the free stack; one that may be used even if it is wrong.
__device__ __forceinline__ int32_t CheckedPage(const PagedKv& kv, int32_t page) {
  if (!Exists(kv, page)) {
    Report(kv, PoolFault::kOverfilled);
    return 0;
  }
  return page;
}

// Puts the first `count` lanes' pages on the free stack; the warp calls together.
__device__ __forceinline__ void PushFreePages(const PagedKv& kv, int32_t page, int count) {
  const int lane = Lane();
  if (count <= 0) return;
  int base = 0;
  if (lane == 0) base = atomicAdd(kv.free_count, count);
  base = FromLane(base, 0);
  if (lane >= count) return;
  if (base >= 0 && base + lane < kv.shape.num_pages && Exists(kv, page)) {
    kv.free_stack[base + lane] = page;
  } else {
    Report(kv, PoolFault::kOverfilled);
  }
}

// Thread blocks for so much work, at least one.
inline unsigned BlocksFor(int64_t work, int64_t per_block, int64_t most) {
  return static_cast<unsigned>(std::clamp<int64_t>((work + per_block - 1) / per_block, 1, most));
}

}  // namespace fox::cuda
