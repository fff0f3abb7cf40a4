// Stores a consumer's results. A thread has rows `row` and `row` + 8 of the work tile, `out` as the
// products produce it, relative to the maximum, and the rows' sums, equal in the four lanes of a
// quad. Rows of unsplit head tiles are stored normed and gated; parallel splits store partial
// results; each serial split is merged with the earlier splits' sum by MergedRow, as MergeKeySplits
// does. The sink is merged when a row is finished.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/cuda/attention/merged_row.cuh"
#include "kernels/cuda/attention/prefill/quad_rows.cuh"
#include "kernels/cuda/attention/prefill/sm90/plan.cuh"
#include "kernels/cuda/primitives/warp.cuh"

namespace fox::cuda {

template <int kHeadDim, typename Source>
__device__ __forceinline__ void StoreRows(const Source& source, const typename Source::Work& work,
                                          int first_row, const QuadTransform<kHeadDim>& transform,
                                          const float (&out)[kHeadDim / 2], const float (&max)[2],
                                          const float (&sum)[2]) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int row = first_row + 8 * r;
    const bool real = row < work.count;
    MergedRow sums{max[r], sum[r], 1, 0};
    source.MergeSink(work, row, sums);
    const float scale = sums.sum > 0 ? 1 / sums.sum * sums.of_sums : 0;
    QuadRow<kHeadDim> x;
#pragma unroll
    for (int i = 0; i < kHeadDim / 4; ++i) x[i] = out[i / 2 * 4 + 2 * r + i % 2] * scale;
    if constexpr (Source::kTransforms) {
      const float norm_scale = transform.Apply(source.transform, r, x);
      if (real && Lane() % 4 == 0) {
        source.transform.StoreRowSum(work.first_row + row, work.head, sums.max, sums.sum,
                                     norm_scale);
      }
    }
    StoreRow<kHeadDim>(x, real, source.template OutRow<kHeadDim>(work, row));
    if (Lane() % 4 == 0) source.StoreLogSum(work, row, real, sums.max, sums.sum);
  }
}

// The thread's columns of a row's partial result.
template <int kHeadDim, typename Source>
__device__ __forceinline__ float2* PartialColumns(const Source& source,
                                                  const typename Source::Work& work, int row) {
  return reinterpret_cast<float2*>(source.template PartialOut<kHeadDim>(work, row)) + Lane() % 4;
}

// Stores row r of the thread's two rows.
template <int kHeadDim, typename Source>
__device__ __forceinline__ void StorePartialRow(const Source& source,
                                                const typename Source::Work& work, int row, int r,
                                                const float (&out)[kHeadDim / 2], float max,
                                                float sum) {
  float2* to = PartialColumns<kHeadDim>(source, work, row);
#pragma unroll
  for (int b = 0; b < kHeadDim / 8; ++b) {
    const int i = 4 * b + 2 * r;
    to[4 * b] = {out[i], out[i + 1]};
  }
  if (Lane() % 4 == 0) *source.PartialSoftmax(work, row) = {max, sum};
}

// For MergeKeySplits. Maxima are relative to c_ref in all splits of the head tile.
template <int kHeadDim, typename Source>
__device__ __forceinline__ void StorePartial(const Source& source,
                                             const typename Source::Work& work, int first_row,
                                             float stop_at, const float (&out)[kHeadDim / 2],
                                             const float (&max)[2], const float (&sum)[2]) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int row = first_row + 8 * r;
    if (row >= work.count) continue;
    StorePartialRow<kHeadDim>(source, work, row, r, out, max[r], sum[r]);
    if (Lane() % 4 == 0) source.schedule.key_splits.stop_at[work.partial_row + row] = stop_at;
  }
}

// Merges a serial split into the running result. A row that needs no more splits stays unchanged
// and is marked by a negative sum. `stop_at`: of the next split; `stopped`: true if all existing
// rows of the thread can skip the next split. The same threads hold the same rows and columns in
// all splits, except maxima and sums, which lanes of a warp pass on.
template <int kHeadDim, typename Source>
__device__ __forceinline__ void MergeSerialSplit(const Source& source,
                                                 const typename Source::Work& work, int first_row,
                                                 float stop_at, float (&out)[kHeadDim / 2],
                                                 float (&max)[2], float (&sum)[2],
                                                 bool (&stopped)[2]) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int row = first_row + 8 * r;
    MergedRow merged{max[r], sum[r], 0, 1};
    stopped[r] = row >= work.count;
    if (!work.on_diagonal()) {
      const float2 before = *source.PartialSoftmax(work, row);
      const bool over = before.y < 0;
      merged = {before.x, fabsf(before.y), 1, 0};
      if (!over) merged.Merge({max[r], sum[r]});
      stopped[r] = stopped[r] || over;
      const float2* from = PartialColumns<kHeadDim>(source, work, row);
#pragma unroll
      for (int b = 0; b < kHeadDim / 8; ++b) {
        const int i = 4 * b + 2 * r;
        const float2 sums = from[4 * b];
        out[i] = over ? sums.x : merged.Output(sums.x, out[i]);
        out[i + 1] = over ? sums.y : merged.Output(sums.y, out[i + 1]);
      }
    }
    stopped[r] = stopped[r] || merged.MayStop(stop_at);
    max[r] = merged.max;
    sum[r] = merged.sum;
  }
}

template <int kHeadDim, typename Source>
__device__ __forceinline__ void StoreSerialSums(const Source& source,
                                                const typename Source::Work& work, int first_row,
                                                const bool (&stopped)[2],
                                                const float (&out)[kHeadDim / 2],
                                                const float (&max)[2], const float (&sum)[2]) {
  __syncwarp();  // the previous ones have been read
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    StorePartialRow<kHeadDim>(source, work, first_row + 8 * r, r, out, max[r],
                              stopped[r] ? -sum[r] : sum[r]);
  }
  __syncwarp();
}

}  // namespace fox::cuda
