// The page pool on the device: pages are allocated, shared and freed only here, with checks.
// Allocating and freeing are separate kernels of a step, so a kernel only pushes to the free stack
// or only pops from it. See paged_kv.h for a page's owners.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "kernels/cuda/primitives/warp.cuh"
#include "kernels/paging/paged_kv.h"

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

// The page at `index` of the free stack, owned by the slot from now on; a valid page even after a
// fault. The kernel that pops the pages counts them in sole_pages.
__device__ __forceinline__ int32_t TakePage(const PagedKv& kv, int slot, int64_t index) {
  const int32_t page = kv.free_stack[index];
  if (!Exists(kv, page)) {
    Report(kv, PoolFault::kOverfilled);
    return 0;
  }
  kv.page_owners[page] = OwnerWord(slot);
  return page;
}

// Changes a page's owners and returns their previous word.
__device__ __forceinline__ uint64_t AddToOwners(const PagedKv& kv, int32_t page, uint64_t word) {
  static_assert(sizeof(unsigned long long) == sizeof(uint64_t));
  return atomicAdd(reinterpret_cast<unsigned long long*>(kv.page_owners + page), word);
}

// Makes the slot another owner of the first `count` lanes' pages; by the whole warp. `from` is the
// slot that probably was their sole owner.
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

// The slot stops owning the first `count` lanes' pages; pages without owners go to the free stack.
// By the whole warp.
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

// Thread blocks for this much work, at least one.
inline unsigned BlocksFor(int64_t work, int64_t per_block, int64_t most) {
  return static_cast<unsigned>(std::clamp<int64_t>((work + per_block - 1) / per_block, 1, most));
}

}  // namespace fox::cuda
