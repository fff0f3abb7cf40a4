// The gate's gradient: the logit of row i and key j contains log f_t for j < t <= i, so
//   d_log_fgate_t = sum_{i >= t, j < t} dS_ij = sum_{i >= t} row_sum_i - sum_{j >= t} col_sum_j,
// whose common terms cancel: a reverse scan, float32 inside a tile, float64 over tiles.
#include <cuda_bf16.h>

#include <cub/block/block_reduce.cuh>

#include "kernels/cuda/attention/varlen/kernels.h"
#include "kernels/cuda/attention/varlen/sequence_range.cuh"
#include "kernels/cuda/attention/varlen/tile_scan.cuh"
#include "kernels/cuda/primitives/kv_index.cuh"
#include "kernels/cuda/primitives/vec8.cuh"
#include "kernels/cuda/primitives/warp.cuh"
#include "kernels/cuda/ptx/dependent_launch.cuh"
#include "kernels/cuda/ptx/fast_math.cuh"
#include "kernels/cuda/runtime/head_dim.h"
#include "kernels/cuda/runtime/launch.h"

namespace fox::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kThreads = kWarps * kWarp;

// The last row tile of the key tile's sequence whose view begins before the key tile's end.
__device__ int LastRowTile(const VarlenState& state, int head, int t) {
  const VarlenTile tile = state.tiles[t];
  const int32_t* first_page = state.first_page + int64_t{head} * state.max_tiles;
  const int end_page = (tile.position + kVarlenTile) / kVarlenPage;
  return t + UpperBoundIndex(end_page - 1, tile.seq_last - t + 1,
                             [&](int i) { return first_page[t + i]; });
}

// A block per (tile, query head).
template <int kHeadDim>
__global__ void __launch_bounds__(kThreads)
    PrepareGradientsKernel(const __grid_constant__ VarlenAttentionParams params, VarlenState state,
                           VarlenGradients gradients) {
  constexpr int kLanes = kHeadDim / kVec8, kRows = kThreads / kLanes;
  TriggerDependents();
  WaitOnDependencies();
  const int t = static_cast<int>(blockIdx.x), head = static_cast<int>(blockIdx.y);
  const int thread = static_cast<int>(threadIdx.x);
  if (t == 0 && head == 0 && thread == 0) *gradients.work_counter = 0;
  if (t >= *state.num_tiles) return;
  const VarlenTile tile = state.tiles[t];
  const int64_t own = state.HeadTile(head, t);
  const auto* out = params.out.At<const __nv_bfloat16>(tile.batch, tile.first_token, head);
  const auto* d_out = params.d_out.At<const __nv_bfloat16>(tile.batch, tile.first_token, head);
  const int column = thread % kLanes * kVec8;
  const Float8 zeros{};
#pragma unroll
  for (int i = thread / kLanes; i < kVarlenTile; i += kRows) {
    float sum = 0;
    if (i < tile.count) {
      const Float8 o = LoadVec8(out + i * params.out.token_stride + column);
      const Float8 d = LoadVec8(d_out + i * params.d_out.token_stride + column);
#pragma unroll
      for (int k = 0; k < kVec8; ++k) sum = fmaf(o.x[k], d.x[k], sum);
    }
    sum = WarpSum<kLanes>(sum);
    const int64_t row = own * kVarlenTile + i;
    if (column == 0) {
      gradients.delta[row] = sum;
      gradients.row_sum[row] = 0;
    }
    StoreVec8(zeros, gradients.dq + row * kHeadDim + column);
  }
  if (thread == 0) {
    gradients.turn[own] = 0;
    gradients.last_row_tile[own] = LastRowTile(state, head, t);
  }
}

// row_sum - col_sum of a tile, summed from each row on to the tile's end; `row[p]` is then this
// lane's row of part p. By the whole warp.
constexpr int kParts = kVarlenTile / kWarp;
struct GateSums {
  float sum[kParts];
  static __device__ int Row(int p) { return kVarlenTile - 1 - p * kWarp - Lane(); }
};

__device__ __forceinline__ GateSums SumGateGradients(const VarlenGradients& gradients, int64_t own,
                                                     int count) {
  GateSums sums;
#pragma unroll
  for (int p = 0; p < kParts; ++p) {
    const int i = GateSums::Row(p);
    const int64_t row = own * kVarlenTile + i;
    sums.sum[p] = i < count ? gradients.row_sum[row] - gradients.col_sum[row] : 0;
  }
  float after = 0;
#pragma unroll
  for (int p = 0; p < kParts; ++p) {
    sums.sum[p] = after + WarpScan(sums.sum[p]);
    after = FromLane(sums.sum[p], kWarp - 1);
  }
  return sums;
}

// A block per (tile, query head): dq to bf16; the tile's sum for the gates.
template <int kHeadDim>
__global__ void __launch_bounds__(kThreads)
    ConvertQueryGradients(const __grid_constant__ VarlenAttentionParams params, VarlenState state,
                          VarlenGradients gradients) {
  constexpr int kLanes = kHeadDim / kVec8, kRows = kThreads / kLanes;
  TriggerDependents();
  WaitOnDependencies();
  const int t = static_cast<int>(blockIdx.x), head = static_cast<int>(blockIdx.y);
  const int thread = static_cast<int>(threadIdx.x);
  if (t >= *state.num_tiles) return;
  const VarlenTile tile = state.tiles[t];
  const int64_t own = state.HeadTile(head, t);
  if (Warp() == 0) {
    const GateSums sums = SumGateGradients(gradients, own, tile.count);
    if (Lane() == kWarp - 1) gradients.gate_sum[own] = static_cast<double>(sums.sum[kParts - 1]);
  }
  auto* dq = params.dq.At<__nv_bfloat16>(tile.batch, tile.first_token, head);
  const int column = thread % kLanes * kVec8;
  const auto scale = static_cast<float>(params.scale);
#pragma unroll
  for (int i = thread / kLanes; i < kVarlenTile; i += kRows) {
    if (i >= tile.count) break;
    Float8 x = LoadVec8(gradients.dq + (own * kVarlenTile + i) * kHeadDim + column);
#pragma unroll
    for (int k = 0; k < kVec8; ++k) x.x[k] *= scale;
    StoreVec8(x, dq + i * params.dq.token_stride + column);
  }
}

// A block per query head: gate_sum from sums of tiles to sums of all later tiles.
__global__ void __launch_bounds__(kScanThreads)
    CarryGateGradients(VarlenState state, VarlenGradients gradients) {
  TriggerDependents();
  WaitOnDependencies();
  double* sums = gradients.gate_sum + static_cast<int64_t>(blockIdx.x) * state.max_tiles;
  const TileRun run =
      RunOfTiles(*state.num_tiles, kScanThreads - 1 - static_cast<int>(threadIdx.x));
  Segment<double> own{0, false};
  for (int t = run.end - 1; t >= run.first; --t) {
    if (state.tiles[t].seq_last == t) own = {0, true};
    own.value += sums[t];
  }
  double after = ExclusiveSegmentScan(own, 0.0, [](double a, double b) { return a + b; });
  for (int t = run.end - 1; t >= run.first; --t) {
    if (state.tiles[t].seq_last == t) after = 0;
    const double sum = sums[t];
    sums[t] = after;
    after += sum;
  }
}

// A warp per (query head, tile), as in SumGates.
__global__ void __launch_bounds__(kThreads)
    WriteGateGradients(VarlenView d_log_fgate, int q_heads, VarlenState state,
                       VarlenGradients gradients) {
  TriggerDependents();
  WaitOnDependencies();
  const int t = static_cast<int>(blockIdx.x), head = static_cast<int>(blockIdx.y) * kWarps + Warp();
  if (t >= *state.num_tiles || head >= q_heads) return;
  const VarlenTile tile = state.tiles[t];
  const int64_t own = state.HeadTile(head, t);
  const GateSums sums = SumGateGradients(gradients, own, tile.count);
  auto* to = d_log_fgate.At<float>(tile.batch, tile.first_token, head);
#pragma unroll
  for (int p = 0; p < kParts; ++p) {
    const int i = GateSums::Row(p);
    if (i >= tile.count) continue;
    const double sum = gradients.gate_sum[own] + static_cast<double>(sums.sum[p]);
    // No logit contains a sequence's first gate: both sums cover the whole sequence and differ only
    // by rounding.
    to[i * d_log_fgate.token_stride] = tile.position + i == 0 ? 0 : static_cast<float>(sum);
  }
}

// A block per query head: d_sink = -sum_i p_i delta_i, p_i the weight of the sink in row i. The
// order of the sum is fixed; past a tile's end p_i is 0.
__global__ void __launch_bounds__(kScanThreads)
    WriteSinkGradients(const float* sink, float* d_sink, VarlenState state,
                       VarlenGradients gradients) {
  using Reduce = cub::BlockReduce<double, kScanThreads, cub::BLOCK_REDUCE_WARP_REDUCTIONS>;
  __shared__ typename Reduce::TempStorage storage;
  TriggerDependents();
  WaitOnDependencies();
  const int64_t head = blockIdx.x, first = head * state.max_tiles * kVarlenTile;
  const int64_t end = first + int64_t{*state.num_tiles} * kVarlenTile;
  double sum = 0;
  for (int64_t row = first + threadIdx.x; row < end; row += kScanThreads) {
    const double decay = state.RowDecay(row / kVarlenTile, static_cast<int>(row % kVarlenTile));
    const auto logit = static_cast<float>(kLog2EDouble * (static_cast<double>(sink[head]) - decay));
    sum -= static_cast<double>(Exp2(logit - state.lse[row]) * gradients.delta[row]);
  }
  sum = Reduce(storage).Sum(sum);
  if (threadIdx.x == 0) d_sink[head] = static_cast<float>(sum);
}

// An array of which some rows are zeroed, `row_bytes` of each head.
struct PaddedArray {
  VarlenView view;
  int heads, element_bytes, row_bytes;
};

struct PaddedArrays {
  PaddedArray arrays[4];
  int count;
};

__device__ bool IsOfSequence(const VarlenSequences& seqs, int tokens, int row, int token) {
  int seq = row;
  if (seqs.count == 0 || (!seqs.packed && row >= seqs.count)) return false;
  if (seqs.packed) {
    seq = UpperBoundIndex(token, seqs.count, [&](int s) { return seqs.begin[s]; });
  }
  const SequenceRange range = RangeOf(seqs, tokens, seq);
  return range.begin <= token && token < range.end;
}

// A warp per 32 tokens of a batch row (blockIdx.x, the dimension of a grid that may be largest).
__global__ void __launch_bounds__(kThreads)
    ZeroPadding(const __grid_constant__ PaddedArrays padded, VarlenSequences seqs, int tokens) {
  TriggerDependents();
  WaitOnDependencies();
  const int row = static_cast<int>(blockIdx.x);
  const int first = (static_cast<int>(blockIdx.y) * kWarps + Warp()) * kWarp;
  const int own = first + Lane();
  const bool padding = own < tokens && !IsOfSequence(seqs, tokens, row, own);
  for (unsigned rest = __ballot_sync(kAllLanes, padding); rest != 0; rest &= rest - 1) {
    const int token = first + __ffs(static_cast<int>(rest)) - 1;
    for (int a = 0; a < padded.count; ++a) {
      const PaddedArray& array = padded.arrays[a];
      const VarlenView& view = array.view;
      char* base = static_cast<char*>(view.data) +
                   (row * view.batch_stride + token * view.token_stride) * array.element_bytes;
      const int words = array.row_bytes / 4;
      for (int i = Lane(); i < array.heads * words; i += kWarp) {
        const int head = i / words;
        char* to = base + head * view.head_stride * array.element_bytes;
        reinterpret_cast<float*>(to)[i % words] = 0;
      }
    }
  }
}

cudaError_t LaunchZeroPadding(const VarlenAttentionParams& params, const PaddedArrays& padded,
                              cudaStream_t stream) {
  const VarlenSequences& seqs = params.seqs;
  if (seqs.begin == nullptr && seqs.count == params.batch) return cudaSuccess;  // there is none
  const dim3 grid(static_cast<unsigned>(params.batch),
                  static_cast<unsigned>((params.tokens + kThreads - 1) / kThreads));
  return Launch(ZeroPadding, grid, kThreads, 0, stream, padded, seqs, params.tokens);
}

PaddedArray Rows(const VarlenView& view, int heads, int head_dim) {
  constexpr int kBytes = sizeof(__nv_bfloat16);
  return {view, heads, kBytes, head_dim * kBytes};
}

}  // namespace

cudaError_t PrepareGradients(const VarlenAttentionParams& params, const VarlenState& state,
                             const VarlenGradients& gradients, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(state.max_tiles), static_cast<unsigned>(params.q_heads));
  return DispatchHeadDim<32>(params.head_dim, [&]<int kHeadDim>() {
    return Launch(PrepareGradientsKernel<kHeadDim>, grid, kThreads, 0, stream, params, state,
                  gradients);
  });
}

cudaError_t FinishGradients(const VarlenAttentionParams& params, const VarlenState& state,
                            const VarlenGradients& gradients, cudaStream_t stream) {
  if (state.max_tiles == 0) return cudaSuccess;
  const auto tiles = static_cast<unsigned>(state.max_tiles);
  const auto heads = static_cast<unsigned>(params.q_heads);
  cudaError_t error = DispatchHeadDim<32>(params.head_dim, [&]<int kHeadDim>() {
    return Launch(ConvertQueryGradients<kHeadDim>, dim3(tiles, heads), kThreads, 0, stream, params,
                  state, gradients);
  });
  if (error != cudaSuccess) return error;
  error = Launch(CarryGateGradients, heads, kScanThreads, 0, stream, state, gradients);
  if (error != cudaSuccess) return error;
  error = Launch(WriteGateGradients, dim3(tiles, (heads + kWarps - 1) / kWarps), kThreads, 0,
                 stream, params.d_log_fgate, params.q_heads, state, gradients);
  if (error != cudaSuccess || params.sink == nullptr) return error;
  return Launch(WriteSinkGradients, heads, kScanThreads, 0, stream, params.sink, params.d_sink,
                state, gradients);
}

cudaError_t ZeroOutputPadding(const VarlenAttentionParams& params, cudaStream_t stream) {
  const PaddedArrays padded{{Rows(params.out, params.q_heads, params.head_dim)}, 1};
  return LaunchZeroPadding(params, padded, stream);
}

cudaError_t ZeroGradientPadding(const VarlenAttentionParams& params, cudaStream_t stream) {
  constexpr int kBytes = sizeof(float);
  const PaddedArrays padded{{Rows(params.dq, params.q_heads, params.head_dim),
                             Rows(params.dk, params.kv_heads, params.head_dim),
                             Rows(params.dv, params.kv_heads, params.head_dim),
                             {params.d_log_fgate, params.q_heads, kBytes, kBytes}},
                            4};
  return LaunchZeroPadding(params, padded, stream);
}

}  // namespace fox::cuda
