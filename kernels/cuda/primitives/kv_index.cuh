// Index arithmetic of BatchView and PagedKv on the device, where the host's member functions cannot
// be called; and a scan over a thread block.
#pragma once

#include <math_constants.h>

#include <cstdint>

#include "kernels/batch_view.h"
#include "kernels/cuda/primitives/warp.cuh"
#include "kernels/paged_kv.h"

namespace fox::cuda {

__device__ __forceinline__ int PagesOf(int64_t tokens) {
  return static_cast<int>((tokens + kPageTokens - 1) / kPageTokens);
}
__device__ __forceinline__ int64_t ListIndex(const PagedKv& kv, int slot, int layer, int kv_head) {
  return (static_cast<int64_t>(slot) * kv.shape.layers + layer) * kv.shape.kv_heads + kv_head;
}
__device__ __forceinline__ int64_t HeadIndex(const PagedKv& kv, int slot, int layer, int q_head) {
  return (static_cast<int64_t>(slot) * kv.shape.layers + layer) * kv.shape.q_heads + q_head;
}
__device__ __forceinline__ int32_t* Table(const PagedKv& kv, int64_t list) {
  return kv.page_table + list * kv.shape.max_pages;
}
__device__ __forceinline__ int GroupOf(const PagedKv& kv) {
  return kv.shape.q_heads / kv.shape.kv_heads;
}

// A sequence's rows in the batch; none where it is padding.
struct SequenceRows {
  int slot;
  int64_t first_row;
  int64_t count;
  int64_t position;
};

__device__ __forceinline__ SequenceRows RowsOf(const BatchView& batch, int seq) {
  SequenceRows rows{batch.slot[seq], batch.row_begin[seq], 0, batch.position[seq]};
  if (rows.slot >= 0) rows.count = batch.row_begin[seq + 1] - rows.first_row;
  return rows;
}

// How many pieces rows [position, position + count) fall into when cut at multiples of `unit`.
__device__ __forceinline__ int NumSpans(const SequenceRows& rows, int unit) {
  if (rows.count <= 0) return 0;
  return static_cast<int>((rows.position + rows.count + unit - 1) / unit - rows.position / unit);
}

// The sum of `value` over this thread and those before it, and over all; the block's threads call
// together. `warp_sums` is shared memory, [kThreads / 32].
template <int kThreads, typename T>
__device__ T InclusiveScan(T value, T* warp_sums, T& total) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
#pragma unroll
  for (int offset = 1; offset < kWarp; offset *= 2) {
    const T before = __shfl_up_sync(kAllLanes, value, offset);
    if (lane >= offset) value += before;
  }
  __syncthreads();  // an earlier scan's sums have been read
  if (lane == kWarp - 1) warp_sums[warp] = value;
  __syncthreads();
  T before = 0;
  total = 0;
#pragma unroll
  for (int w = 0; w < kThreads / kWarp; ++w) {
    if (w < warp) before += warp_sums[w];
    total += warp_sums[w];
  }
  return before + value;
}

// The last i in [0, count) with begin(i) <= k; begin ascends from begin(0) <= k. Where several
// neighbours begin at the same k, all but the last are empty.
template <typename Begin>
__device__ __forceinline__ int UpperBoundIndex(int64_t k, int count, const Begin& begin) {
  int low = 0, high = count;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (begin(middle) <= k) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

}  // namespace fox::cuda
