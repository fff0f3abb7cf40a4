// The page pool on the device: the one place where pages are taken, shared and given back, all of
// it checked. Takes and gives are separate kernels of a step, so the free stack is only ever pushed
// to or popped from. See paged_kv.h for who owns a page.
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

// The page at `index` of the free stack, the slot's from now on; one that may be used even if it is
// wrong. Whoever commits the takes counts them in sole_pages.
__device__ __forceinline__ int32_t TakePage(const PagedKv& kv, int slot, int64_t index) {
  const int32_t page = kv.free_stack[index];
  if (!Exists(kv, page)) {
    Report(kv, PoolFault::kOverfilled);
    return 0;
  }
  kv.page_owners[page] = OwnerWord(slot);
  return page;
}

// Changes a page's owners and returns what they were.
__device__ __forceinline__ uint64_t AddToOwners(const PagedKv& kv, int32_t page, uint64_t word) {
  static_assert(sizeof(unsigned long long) == sizeof(uint64_t));
  return atomicAdd(reinterpret_cast<unsigned long long*>(kv.page_owners + page), word);
}

// The slot has the first `count` lanes' pages, too; the warp calls together. `from` is who probably
// had them alone.
__device__ __forceinline__ void SharePages(const PagedKv& kv, int slot, int from, int32_t page,
                                           int count) {
  bool was_from = false;
  if (Lane() < count) {
    if (Exists(kv, page)) {
      const uint64_t before = AddToOwners(kv, page, OwnerWord(slot));
      if (NumOwners(before) == 0) Report(kv, PoolFault::kOverfilled);
      if (NumOwners(before) == 1) {
        was_from = SoleOwner(before) == from;
        if (!was_from) atomicAdd(kv.sole_pages + SoleOwner(before), -1);
      }
    } else {
      Report(kv, PoolFault::kOverfilled);
    }
  }
  const int fewer = __popc(__ballot_sync(kAllLanes, was_from));
  if (Lane() == 0 && fewer > 0) atomicAdd(kv.sole_pages + from, -fewer);
}

// The slot gives up the first `count` lanes' pages; those that nobody has go to the free stack. The
// warp calls together.
__device__ __forceinline__ void DropPages(const PagedKv& kv, int slot, int32_t page, int count) {
  if (count <= 0) return;
  const int lane = Lane();
  bool frees = false;
  if (lane < count) {
    if (Exists(kv, page)) {
      const uint64_t before = AddToOwners(kv, page, -OwnerWord(slot));
      const uint64_t owners = before - OwnerWord(slot);
      if (NumOwners(before) == 0) Report(kv, PoolFault::kOverfilled);
      if (NumOwners(before) == 2) atomicAdd(kv.sole_pages + SoleOwner(owners), 1);
      frees = NumOwners(before) == 1;
    } else {
      Report(kv, PoolFault::kOverfilled);
    }
  }
  const unsigned freed = __ballot_sync(kAllLanes, frees);
  if (freed == 0) return;
  int base = 0;
  if (lane == 0) {
    base = atomicAdd(kv.free_count, __popc(freed));
    atomicAdd(kv.sole_pages + slot, -__popc(freed));
  }
  base = FromLane(base, 0);
  if (!frees) return;
  const int at = base + __popc(freed & ((1u << lane) - 1));
  if (at >= 0 && at < kv.shape.num_pages) {
    kv.free_stack[at] = page;
  } else {
    Report(kv, PoolFault::kOverfilled);
  }
}

// Thread blocks for so much work, at least one.
inline unsigned BlocksFor(int64_t work, int64_t per_block, int64_t most) {
  return static_cast<unsigned>(std::clamp<int64_t>((work + per_block - 1) / per_block, 1, most));
}

}  // namespace fox::cuda
