// Append of prefill rows, third kernel of three: queries, in place. They do not enter the running
// sums, so they need not wait for accumulate.cu, which uses few SMs.
#include "kernels/cuda/append/append.h"
#include "kernels/cuda/append/row.cuh"
#include "kernels/cuda/ptx/dependent_launch.cuh"
#include "kernels/cuda/ptx/global_memory.cuh"
#include "kernels/cuda/runtime/head_dim.h"
#include "kernels/cuda/runtime/launch.h"

namespace fox::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kRows = 4;                  // of a warp
constexpr int kPartCols = kVec8 * kWarp;  // of a warp: whole heads

__device__ __forceinline__ int64_t PositionOf(const BatchView& batch, int64_t row) {
  const int seq = UpperBoundIndex(row, batch.num_seqs,
                                  [&](int s) { return LoadCoherent(batch.row_begin + s); });
  return LoadCoherent(batch.position + seq) + (row - LoadCoherent(batch.row_begin + seq));
}

__device__ __forceinline__ Rotation RotationOfLane(const Rotation& own, int lane) {
  Rotation rotation;
#pragma unroll
  for (int m = 0; m < kVec8; ++m) {
    rotation.cosine[m] = FromLane(own.cosine[m], lane);
    rotation.sine[m] = FromLane(own.sine[m], lane);
  }
  return rotation;
}

// A warp kRows rows of kPartCols columns, a lane eight of them.
template <int kHeadDim, bool kRotates>
__global__ void __launch_bounds__(kThreads)
    ProjectQueriesKernel(const __grid_constant__ BatchView batch,
                         const __grid_constant__ AppendParams params, int64_t first_row, int cols,
                         int parts) {
  TriggerDependents();
  const int warp = static_cast<int>(blockIdx.x) * (kThreads / kWarp) + Warp();
  const int column = warp % parts * kPartCols + Lane() * kVec8;
  const int64_t first = first_row + static_cast<int64_t>(warp / parts) * kRows;
  const bool there = column < cols;
  __nv_bfloat16* at = ProjectionRow(params, first) + params.q_column + column;
  uint4 raw[kRows] = {};
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    if (there && first + i < batch.num_rows) {
      raw[i] = LoadCoherent(reinterpret_cast<const uint4*>(at + i * params.projection.row_stride));
    }
  }
  Float8 weight{};
  if (there) weight = LoadNorm<kHeadDim>(params.q_norm, params.q_cap, column);
  Rotation rotation;
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    if (first + i >= batch.num_rows) break;
    Float8 query = Widen(raw[i]);
    if (params.q_norm != nullptr) {
      NormalizeBy<kHeadDim>(query, weight, static_cast<float>(params.qk_norm_eps));
    }
    if (params.q_cap != nullptr) CapNorm<kHeadDim>(query, weight);
    if constexpr (kRotates) {
      constexpr int kLanes = kRowLanes<kHeadDim>, kHeads = kWarp / kLanes;
      const int sub = Lane() % kLanes;
      if (i % kHeads == 0) {  // the lanes of each head compute one row's rotation, for all heads
        rotation =
            RotationAt<kHeadDim>(params, PositionOf(batch, first + i + Lane() / kLanes), sub);
      }
      Rotate<kHeadDim>(query, RotationOfLane(rotation, i % kHeads * kLanes + sub));
    }
    if (there) StoreWhole(ToBf16x8(query), at + i * params.projection.row_stride);
  }
  if (blockIdx.x == 0) WaitOnDependencies();  // one block only: waiting blocks occupy their SM
}

template <int kHeadDim>
cudaError_t LaunchFor(const BatchView& batch, const AppendParams& params, const PagedKv& kv,
                      cudaStream_t stream) {
  const int64_t rows = batch.num_rows - batch.num_decodes;
  const int cols = kv.shape.q_heads * kHeadDim, parts = (cols + kPartCols - 1) / kPartCols;
  const int64_t warps = (rows + kRows - 1) / kRows * parts;
  const dim3 grid(static_cast<unsigned>((warps * kWarp + kThreads - 1) / kThreads));
  const auto kernel = params.rope_frequency == nullptr ? ProjectQueriesKernel<kHeadDim, false>
                                                       : ProjectQueriesKernel<kHeadDim, true>;
  return Launch(kernel, grid, kThreads, 0, stream, batch, params,
                static_cast<int64_t>(batch.num_decodes), cols, parts);
}

}  // namespace

cudaError_t ProjectQueries(const BatchView& batch, const AppendParams& params, const PagedKv& kv,
                           cudaStream_t stream) {
  if (params.q_norm == nullptr && params.q_cap == nullptr && params.rope_frequency == nullptr) {
    return cudaSuccess;
  }
  return DispatchHeadDim(kv.shape.head_dim, [&]<int kHeadDim>() {
    return LaunchFor<kHeadDim>(batch, params, kv, stream);
  });
}

}  // namespace fox::cuda
