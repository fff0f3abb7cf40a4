// The list of tiles by a scan over sequences; gates in two passes, inside tiles by all SMs and over
// tiles by one block a head, float64 throughout and rounded once.
#include "kernels/cuda/attention/varlen/kernels.h"
#include "kernels/cuda/attention/varlen/sequence_range.cuh"
#include "kernels/cuda/attention/varlen/tile_scan.cuh"
#include "kernels/cuda/primitives/kv_index.cuh"
#include "kernels/cuda/primitives/warp.cuh"
#include "kernels/cuda/ptx/dependent_launch.cuh"
#include "kernels/cuda/runtime/launch.h"

namespace fox::cuda {
namespace {

constexpr int kWarps = 8;

__device__ __forceinline__ int NumTiles(const SequenceRange& range) {
  return (range.end - range.begin + kVarlenTile - 1) / kVarlenTile;
}

// One block.
__global__ void __launch_bounds__(kScanThreads)
    MakeTiles(VarlenSequences seqs, int tokens, VarlenState state) {
  using Scan = cub::BlockScan<int, kScanThreads>;
  __shared__ typename Scan::TempStorage storage;
  __shared__ int first_tile[kScanThreads];
  TriggerDependents();
  WaitOnDependencies();
  const int thread = static_cast<int>(threadIdx.x);
  int before = 0;  // tiles of the sequences up to `base`
#pragma unroll 1
  for (int base = 0; base < seqs.count; base += kScanThreads) {
    const int own = base + thread < seqs.count ? NumTiles(RangeOf(seqs, tokens, base + thread)) : 0;
    int first = 0, total = 0;
    Scan(storage).ExclusiveSum(own, first, total);
    first_tile[thread] = before + first;
    __syncthreads();
    for (int t = before + thread; t < min(before + total, state.max_tiles); t += kScanThreads) {
      const int k = UpperBoundIndex(t, kScanThreads, [&](int i) { return first_tile[i]; });
      const int seq = base + k, seq_first = first_tile[k];
      const SequenceRange range = RangeOf(seqs, tokens, seq);
      const int position = (t - seq_first) * kVarlenTile;
      state.tiles[t] = {seq,
                        seqs.packed ? 0 : seq,
                        range.begin + position,
                        min(kVarlenTile, range.end - range.begin - position),
                        position,
                        seq_first,
                        min(seq_first + NumTiles(range), state.max_tiles) - 1};
    }
    __syncthreads();  // first_tile and storage are free
    before += total;
  }
  if (thread == 0) {
    *state.num_tiles = min(before, state.max_tiles);
    *state.work_counter = 0;
  }
}

// A warp per (query head, tile): offsets, and in cum_log_f the tile's sum. A block's warps have
// neighbouring heads, whose gates may share cache lines.
__global__ void __launch_bounds__(kWarps* kWarp)
    SumGates(VarlenView log_fgate, int q_heads, VarlenState state) {
  TriggerDependents();
  WaitOnDependencies();
  const int t = static_cast<int>(blockIdx.x), head = static_cast<int>(blockIdx.y) * kWarps + Warp();
  if (t >= *state.num_tiles || head >= q_heads) return;
  const VarlenTile tile = state.tiles[t];
  const float* gates = log_fgate.At<float>(tile.batch, tile.first_token, head);
  constexpr int kParts = kVarlenTile / kWarp;
  double part[kParts];
#pragma unroll
  for (int i = 0; i < kParts; ++i) {
    const int j = i * kWarp + Lane();
    part[i] = j < tile.count ? static_cast<double>(gates[j * log_fgate.token_stride]) : 0;
    if (part[i] < kLeastLogGate) part[i] = kLeastLogGate;
  }
  const int64_t own = state.HeadTile(head, t);
  double before = 0;
#pragma unroll
  for (int i = 0; i < kParts; ++i) {
    const double sum = before + WarpScan(part[i]);
    state.log_f_offset[own * kVarlenTile + i * kWarp + Lane()] = static_cast<float>(sum);
    before = FromLane(sum, kWarp - 1);
  }
  if (Lane() == 0) state.cum_log_f[own] = before;
}

// A block per query head: cum_log_f from sums of tiles to sums of all tiles before.
__global__ void __launch_bounds__(kScanThreads) CarryGates(AcpMode acp, VarlenState state) {
  TriggerDependents();
  WaitOnDependencies();
  const int64_t first_of_head = static_cast<int64_t>(blockIdx.x) * state.max_tiles;
  double* sums = state.cum_log_f + first_of_head;
  const TileRun run = RunOfTiles(*state.num_tiles, static_cast<int>(threadIdx.x));
  Segment<double> own{0, false};
  for (int t = run.first; t < run.end; ++t) {
    if (state.tiles[t].seq_first == t) own = {0, true};
    own.value += sums[t];
  }
  double c = ExclusiveSegmentScan(own, 0.0, [](double a, double b) { return a + b; });
  for (int t = run.first; t < run.end; ++t) {
    if (state.tiles[t].seq_first == t) c = 0;
    const double sum = sums[t];
    sums[t] = c;
    c += sum;
    if (acp == AcpMode::kOff) state.first_page[first_of_head + t] = 0;
  }
}

}  // namespace

cudaError_t ScheduleVarlen(const VarlenAttentionParams& params, const VarlenState& state,
                           cudaStream_t stream) {
  if (state.max_tiles == 0) return cudaSuccess;
  const auto tiles = static_cast<unsigned>(state.max_tiles);
  const auto heads = static_cast<unsigned>(params.q_heads);
  cudaError_t error =
      Launch(MakeTiles, 1, kScanThreads, 0, stream, params.seqs, params.tokens, state);
  if (error != cudaSuccess) return error;
  error = Launch(SumGates, dim3(tiles, (heads + kWarps - 1) / kWarps), kWarps * kWarp, 0, stream,
                 params.log_fgate, params.q_heads, state);
  if (error != cudaSuccess) return error;
  error = Launch(CarryGates, heads, kScanThreads, 0, stream, params.acp, state);
  if (error != cudaSuccess || params.acp == AcpMode::kOff) return error;
  return FindFirstPages(params, state, stream);
}

}  // namespace fox::cuda
