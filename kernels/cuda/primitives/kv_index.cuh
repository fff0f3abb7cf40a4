// A batch's rows on the device, their division into spans, and a scan over a thread block.
#pragma once

#include <math_constants.h>

#include <cstdint>

#include "kernels/cuda/primitives/warp.cuh"
#include "kernels/cuda/ptx/global_memory.cuh"
#include "kernels/interface/batch_view.h"
#include "kernels/paging/paged_kv.h"

namespace fox::cuda {

// A sequence's rows in the batch; none where it is padding.
struct SequenceRows {
  int slot;
  int64_t first_row;
  int64_t count;
  int64_t position;
};

// May be called before WaitOnDependencies() by kernels behind BeginStepKernel: the first-level
// cache may hold an earlier step's batch, at the same addresses.
__device__ __forceinline__ SequenceRows RowsOf(const BatchView& batch, int seq) {
  SequenceRows rows{LoadCoherent(batch.slot + seq), LoadCoherent(batch.row_begin + seq), 0,
                    LoadCoherent(batch.position + seq)};
  const int64_t end = LoadCoherent(batch.row_begin + seq + 1);
  if (rows.slot >= 0) rows.count = end - rows.first_row;
  return rows;
}

// The number of pieces of rows [position, position + count) when cut at multiples of `unit`.
__device__ __forceinline__ int NumSpans(const SequenceRows& rows, int unit) {
  if (rows.count <= 0) return 0;
  return static_cast<int>((rows.position + rows.count + unit - 1) / unit - rows.position / unit);
}

// The sum of `value` over this thread and those before it, and over all; by all threads of the
// block. `warp_sums` is shared memory, [kThreads / 32].
template <int kThreads, typename T>
__device__ T InclusiveScan(T value, T* warp_sums, T& total) {
  constexpr int kWarps = kThreads / kWarp;
  value = WarpScan(value);
  __syncthreads();  // an earlier scan's sums have been read
  if (Lane() == kWarp - 1) warp_sums[Warp()] = value;
  __syncthreads();
  const T sums = WarpScan(Lane() < kWarps ? warp_sums[Lane()] : T{0});
  total = FromLane(sums, kWarps - 1);
  const T before = FromLane(sums, max(Warp() - 1, 0));
  return Warp() == 0 ? value : before + value;
}

// The sequences of the batch for which wanted(seq) is true, ascending, and their number; by all
// threads of the block. `warp_sums` and `selected` are shared memory, [kThreads / 32] and
// [num_seqs]. Ends with a barrier.
template <int kThreads, typename Predicate>
__device__ int SelectSequences(const BatchView& batch, int* warp_sums, int32_t* selected,
                               const Predicate& wanted) {
  int count = 0;
  for (int base = 0; base < batch.num_seqs; base += kThreads) {
    const int seq = base + static_cast<int>(threadIdx.x);
    const int here = seq < batch.num_seqs && wanted(seq) ? 1 : 0;
    int total;
    const int sum = InclusiveScan<kThreads>(here, warp_sums, total);
    if (here != 0) selected[count + sum - 1] = seq;
    count += total;
  }
  __syncthreads();
  return count;
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
