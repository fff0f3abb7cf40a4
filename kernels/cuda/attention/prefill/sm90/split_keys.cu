// The plan of splits over keys, one block for all head tiles of a launch, and their merge, a few
// threads per row. See split_keys.h.
#include <cuda_bf16.h>

#include "kernels/cuda/attention/merged_row.cuh"
#include "kernels/cuda/attention/prefill/quad_rows.cuh"
#include "kernels/cuda/attention/prefill/sm90/paged_source.cuh"
#include "kernels/cuda/attention/prefill/sm90/split_keys.h"
#include "kernels/cuda/primitives/kv_index.cuh"
#include "kernels/cuda/primitives/vec8.cuh"
#include "kernels/cuda/ptx/dependent_launch.cuh"
#include "kernels/cuda/ptx/fast_math.cuh"
#include "kernels/cuda/runtime/launch.h"

namespace fox::cuda {
namespace {

constexpr int kPlanThreads = 1024;
constexpr int kMergeThreads = 256;
constexpr int kMergeBlocksPerSm = 4;
constexpr int kMergeUnroll = 4;

// Two sums in one scan: rows of partial results, and splits except the first of each head tile.
constexpr int kRowsBit = 28;
constexpr uint64_t kSplitMask = (uint64_t{1} << kRowsBit) - 1;

// A head tile's place in [q_heads, max_tiles], its rows, key/value tiles and splits.
struct HeadTileRange {
  int tile, head;
  bool covered;  // by the launch behind the plan
  int64_t index;
  int rows, length, splits;
};

__device__ HeadTileRange RangeOf(const PagedKvShape& shape, const StepSchedule& schedule,
                                 int head_tile, int num_tiles) {
  HeadTileRange range{};
  range.splits = 1;
  range.head = head_tile / num_tiles;
  range.tile = head_tile % num_tiles;
  const RowBlock rows = schedule.tiles[range.tile];
  range.covered = schedule.wide.Covers(rows.seq, range.head / shape.group(), shape.kv_heads);
  if (!range.covered) return range;
  range.index = schedule.HeadTile(range.head, range.tile);
  range.rows = rows.count;
  const int first = min(schedule.boundary[range.index], rows.position / kPageTokens) / 2;
  const int last = rows.position / kTileKeys;
  range.length = last - first + 1;
  range.splits = NumKeySplits(first, last, schedule.key_splits.least_shift,
                              schedule.key_splits.first_split_tile);
  return range;
}

__global__ void __launch_bounds__(kPlanThreads)
    PlanKeySplitsKernel(const PagedKvShape shape, const StepSchedule schedule) {
  __shared__ uint64_t warp_sums[kPlanThreads / kWarp];
  __shared__ int32_t num_splits, num_split_tiles;
  TriggerDependents();
  WaitOnDependencies();
  const KeySplits& plan = schedule.key_splits;
  const int thread = static_cast<int>(threadIdx.x);
  if (thread == 0) num_splits = num_split_tiles = 0;
  __syncthreads();
  const int num_tiles = *schedule.num_tiles, head_tiles = num_tiles * shape.q_heads;

  uint64_t carry = 0;
  int longest = 0;  // of the KV loops that one thread block runs, unsplit or in serial splits
  for (int base = 0; base < head_tiles; base += kPlanThreads) {
    const int index = base + thread;
    HeadTileRange range{};
    range.splits = 1;
    if (index < head_tiles) range = RangeOf(shape, schedule, index, num_tiles);
    const uint64_t rows = range.splits > 1 ? static_cast<uint64_t>(range.splits) * range.rows : 0;
    const uint64_t need = rows << kRowsBit | static_cast<uint64_t>(range.splits - 1);
    uint64_t total;
    const uint64_t end = carry + InclusiveScan<kPlanThreads>(need, warp_sums, total);
    carry += total;
    if (!range.covered) continue;
    const auto row_end = static_cast<int64_t>(end >> kRowsBit);
    const auto split_end = static_cast<int64_t>(end & kSplitMask);
    // Ends ascend, so the first ones fit, without gaps.
    const bool fits = row_end <= plan.max_rows && split_end <= plan.max_splits;
    if (range.splits == 1 || !fits) {
      plan.partial_rows[range.index] = -1;
      longest = max(longest, range.length);
      continue;
    }
    const auto first_row = static_cast<int32_t>(kSerialRows + row_end - static_cast<int64_t>(rows));
    plan.partial_rows[range.index] = first_row;
    for (int i = 1; i < range.splits; ++i) {
      plan.splits[split_end - range.splits + i] = {range.tile, range.head, i};
    }
    plan.split_tiles[atomicAdd(&num_split_tiles, 1)] = {range.tile, range.head, range.splits,
                                                        first_row};
    atomicMax(&num_splits, static_cast<int32_t>(split_end));
  }
  const bool any_long = __syncthreads_or(longest >= 2 << plan.least_shift) != 0;
  if (thread > 0) return;
  *plan.num_splits = num_splits;
  *plan.num_split_tiles = num_split_tiles;
  *plan.splits_first = any_long ? 0 : 1;
}

// The output transform of a row, with the same bits as QuadTransform; gives the scale of its norm.
// The thread has the four columns from 4 `vector` on; the row's threads have neighbouring columns.
template <int kHeadDim>
__device__ __forceinline__ float TransformVector(const OutputTransformArguments& t, int64_t row,
                                                 int head, int vector, float4& x) {
  float scale = 1;
  if (t.norm != nullptr) {
    const float4 norm = __ldg(reinterpret_cast<const float4*>(t.norm + head * kHeadDim) + vector);
    scale = NormScale<kHeadDim>(SumSquares<kHeadDim>(x), t.eps);
    x = {x.x * scale * norm.x, x.y * scale * norm.y, x.z * scale * norm.z, x.w * scale * norm.w};
  }
  if (t.gate == nullptr) return scale;
  const uint2 pairs = reinterpret_cast<const uint2*>(GatesOf<kHeadDim>(t, row, head))[vector];
  const Float8 gates = Widen({pairs.x, pairs.y, 0, 0});
  x = {Gated(x.x, gates.x[0], t.act), Gated(x.y, gates.x[1], t.act), Gated(x.z, gates.x[2], t.act),
       Gated(x.w, gates.x[3], t.act)};
  return scale;
}

// Threads that share a row have 4 columns each. Rows past the tile's end repeat the last row and
// store nothing. A row stops where serial splits would (MergeSerial).
template <int kHeadDim>
__global__ void __launch_bounds__(kMergeThreads, kMergeBlocksPerSm)
    MergeKeySplitsKernel(const __grid_constant__ PagedSource source) {
  constexpr int kRowThreads = kHeadDim / 4, kRows = kMergeThreads / kRowThreads;
  constexpr int kGroups = (kTileRows + kRows - 1) / kRows;
  TriggerDependents();
  WaitOnDependencies();
  const KeySplits& plan = source.schedule.key_splits;
  const int thread = static_cast<int>(threadIdx.x), column = thread % kRowThreads;
  const int items = *plan.num_split_tiles * kGroups;
  for (int item = static_cast<int>(blockIdx.x); item < items; item += static_cast<int>(gridDim.x)) {
    const SplitHeadTile head_tile = plan.split_tiles[item / kGroups];
    const int count = head_tile.splits;
    PagedWork work{};
    source.PlaceWork(work, source.schedule.tiles[head_tile.tile], head_tile.head);
    const int wanted = item % kGroups * kRows + thread / kRowThreads;
    const int row = min(wanted, work.count - 1);
    const int64_t partial_row = head_tile.first_row + row;
    const float2* softmax = reinterpret_cast<const float2*>(plan.softmax) + partial_row;
    const float* stop_at = plan.stop_at + partial_row;
    const float4* partial =
        reinterpret_cast<const float4*>(plan.out) + partial_row * kRowThreads + column;

    MergedRow sums{softmax[0].x, softmax[0].y, 0, 1};
    float stop_before = stop_at[0];
    float4 out = partial[0];
    bool stopped = false;
#pragma unroll 1
    for (int base = 1; base < count; base += kMergeUnroll) {
      float2 of_split[kMergeUnroll];
      float stop_behind[kMergeUnroll];
      float4 x[kMergeUnroll];
#pragma unroll
      for (int k = 0; k < kMergeUnroll; ++k) {
        const int64_t at = static_cast<int64_t>(min(base + k, count - 1)) * work.count;
        of_split[k] = softmax[at];
        stop_behind[k] = stop_at[at];
        x[k] = partial[at * kRowThreads];
      }
#pragma unroll
      for (int k = 0; k < kMergeUnroll; ++k) {
        if (base + k >= count) break;
        stopped = stopped || sums.MayStop(stop_before);
        if (stopped) break;
        stop_before = stop_behind[k];
        sums.Merge(of_split[k]);
        out.x = sums.Output(out.x, x[k].x);
        out.y = sums.Output(out.y, x[k].y);
        out.z = sums.Output(out.z, x[k].z);
        out.w = sums.Output(out.w, x[k].w);
      }
      if (stopped) break;
    }
    if (source.transform.sink != nullptr || source.lse != nullptr) {
      work.ref_log_decay = source.CumulativeGate(work, work.position);
    }
    sums.of_sums = 1;
    source.MergeSink(work, row, sums);
    const float scale = sums.sum > 0 ? 1 / sums.sum * sums.of_sums : 0;
    out = {out.x * scale, out.y * scale, out.z * scale, out.w * scale};
    const float norm_scale =
        TransformVector<kHeadDim>(source.transform, work.first_row + row, work.head, column, out);
    if (wanted >= work.count) continue;
    *reinterpret_cast<uint2*>(source.OutRow<kHeadDim>(work, row) + 4 * column) = {
        PackBf16(out.x, out.y), PackBf16(out.z, out.w)};
    if (column > 0) continue;
    source.transform.StoreRowSum(work.first_row + row, work.head, sums.max, sums.sum, norm_scale);
    source.StoreLogSum(work, row, true, sums.max, sums.sum);
  }
}

}  // namespace

cudaError_t PlanKeySplits(const PagedKvShape& shape, const StepSchedule& schedule,
                          cudaStream_t stream) {
  return Launch(PlanKeySplitsKernel, dim3(1), dim3(kPlanThreads), 0, stream, shape, schedule);
}

template <int kHeadDim>
cudaError_t MergeKeySplits(const PagedSource& source, cudaStream_t stream) {
  int processors = 0;
  const cudaError_t error = CountMultiprocessors(&processors);
  if (error != cudaSuccess) return error;
  return Launch(MergeKeySplitsKernel<kHeadDim>,
                dim3(static_cast<unsigned>(processors * kMergeBlocksPerSm)), dim3(kMergeThreads), 0,
                stream, source);
}

template cudaError_t MergeKeySplits<32>(const PagedSource& source, cudaStream_t stream);
template cudaError_t MergeKeySplits<64>(const PagedSource& source, cudaStream_t stream);
template cudaError_t MergeKeySplits<128>(const PagedSource& source, cudaStream_t stream);

}  // namespace fox::cuda
