// The plan of splits over keys, one block for all walks of a layer, and their merge, a few threads
// for each row. See split_keys.h.
#include <cuda_bf16.h>

#include "kernels/cuda/attention/prefill/sm90/paged_source.cuh"
#include "kernels/cuda/attention/prefill/sm90/split_keys.h"
#include "kernels/cuda/primitives/kv_index.cuh"
#include "kernels/cuda/primitives/math.cuh"
#include "kernels/cuda/ptx/dependent_launch.cuh"
#include "kernels/cuda/ptx/fast_math.cuh"
#include "kernels/cuda/runtime/launch.h"

namespace fox::cuda {
namespace {

constexpr int kPlanThreads = 1024;
constexpr int kMergeThreads = 256;
constexpr int kMergeBlocksPerSm = 4;
constexpr int kMergeUnroll = 8;

// Two sums in one scan: rows of partial results, and splits but the first of each walk.
constexpr int kRowsBit = 24;
constexpr uint64_t kSplitMask = (uint64_t{1} << kRowsBit) - 1;

// All walks become whole, and those tiles are listed whose walks may be split: those of sequences
// that bring few rows, so that long prompts cost no time here. Their number. Ends with a barrier.
__device__ int ListTiles(const BatchView& batch, int q_heads, const StepSchedule& schedule) {
  __shared__ int warp_sums[kPlanThreads / kWarp];
  const KeySplits& plan = schedule.key_splits;
  const int num_tiles = *schedule.num_tiles;
  int listed = 0;
  for (int base = 0; base < num_tiles; base += kPlanThreads) {
    const int tile = base + static_cast<int>(threadIdx.x);
    bool few = false;
    if (tile < num_tiles) {
      few = RowsOf(batch, schedule.tiles[tile].seq).count <= kMostSplitRows;
      for (int head = 0; head < q_heads; ++head) {
        plan.walks[static_cast<int64_t>(head) * schedule.max_tiles + tile] = {-1, 0};
      }
    }
    int total;
    const int end = InclusiveScan<kPlanThreads>(few ? 1 : 0, warp_sums, total);
    if (few) plan.tiles[listed + end - 1] = tile;
    listed += total;
  }
  __syncthreads();
  return listed;
}

// A walk, by (head, listed tile), and its key/value tiles.
struct WalkRange {
  int tile, head;
  int64_t index;  // in [q_heads, max_tiles]
  int seq, count;
  int first, last;

  __device__ int length() const { return last - first + 1; }
};

__device__ WalkRange RangeOf(const StepSchedule& schedule, int walk, int num_tiles) {
  WalkRange range;
  range.head = walk / num_tiles;
  range.tile = schedule.key_splits.tiles[walk % num_tiles];
  range.index = static_cast<int64_t>(range.head) * schedule.max_tiles + range.tile;
  const RowBlock rows = schedule.tiles[range.tile];
  range.seq = rows.seq;
  range.count = rows.count;
  range.first = min(schedule.boundary[range.index], rows.position / kPageTokens) / 2;
  range.last = rows.position / kTileKeys;
  return range;
}

__global__ void __launch_bounds__(kPlanThreads)
    PlanKeySplitsKernel(const BatchView batch, int q_heads, const StepSchedule schedule) {
  extern __shared__ int32_t tiles_of[];  // [num_seqs] key/value tiles of the sequence's walks
  __shared__ uint64_t warp_sums[kPlanThreads / kWarp];
  __shared__ int32_t num_splits, num_split_walks;
  TriggerDependents();
  WaitOnDependencies();
  const KeySplits& plan = schedule.key_splits;
  const int thread = static_cast<int>(threadIdx.x);
  for (int seq = thread; seq < batch.num_seqs; seq += kPlanThreads) tiles_of[seq] = 0;
  if (thread == 0) num_splits = num_split_walks = 0;
  const int num_tiles = ListTiles(batch, q_heads, schedule), walks = num_tiles * q_heads;
  for (int w = thread; w < walks; w += kPlanThreads) {
    const WalkRange walk = RangeOf(schedule, w, num_tiles);
    atomicAdd(&tiles_of[walk.seq], walk.length());
  }
  __syncthreads();

  uint64_t carry = 0;
  for (int base = 0; base < walks; base += kPlanThreads) {
    const int w = base + thread;
    WalkRange walk{};
    int shift = 0, count = 1;
    if (w < walks) {
      walk = RangeOf(schedule, w, num_tiles);
      shift = KeySplitShift(tiles_of[walk.seq], plan.least_shift);
      count = NumKeySplits(walk.first, walk.last, shift);
    }
    const uint64_t rows = count > 1 ? static_cast<uint64_t>(count) * walk.count : 0;
    const uint64_t need = rows << kRowsBit | static_cast<uint64_t>(count - 1);
    uint64_t total;
    const uint64_t end = carry + InclusiveScan<kPlanThreads>(need, warp_sums, total);
    carry += total;
    if (count == 1) continue;
    const auto row_end = static_cast<int64_t>(end >> kRowsBit);
    const auto split_end = static_cast<int64_t>(end & kSplitMask);
    // Ends ascend, so those that fit are the first ones and leave no gaps.
    if (row_end > plan.max_rows || split_end > plan.max_splits) continue;
    const auto first_row = static_cast<int32_t>(row_end - static_cast<int64_t>(rows));
    plan.walks[walk.index] = {shift, first_row};
    for (int i = 1; i < count; ++i) {
      plan.splits[split_end - count + i] = {walk.tile, walk.head, i};
    }
    plan.split_walks[atomicAdd(&num_split_walks, 1)] = {walk.tile, walk.head};
    atomicMax(&num_splits, static_cast<int32_t>(split_end));
  }
  __syncthreads();
  if (thread == 0) {
    *plan.num_splits = num_splits;
    *plan.num_split_walks = num_split_walks;
    *plan.splits_first = num_tiles == *schedule.num_tiles ? 1 : 0;
  }
}

// Threads that share a row take 4 columns each. Rows past the tile's end do what the last one does
// and store nothing.
template <int kHeadDim>
__global__ void __launch_bounds__(kMergeThreads, kMergeBlocksPerSm)
    MergeKeySplitsKernel(const __grid_constant__ PagedSource source) {
  constexpr int kRowThreads = kHeadDim / 4, kRows = kMergeThreads / kRowThreads;
  constexpr int kGroups = (kTileRows + kRows - 1) / kRows;
  TriggerDependents();
  WaitOnDependencies();
  const KeySplits& plan = source.schedule.key_splits;
  const int thread = static_cast<int>(threadIdx.x), column = thread % kRowThreads;
  const int items = *plan.num_split_walks * kGroups;
  for (int item = static_cast<int>(blockIdx.x); item < items; item += static_cast<int>(gridDim.x)) {
    const SplitWalk place = plan.split_walks[item / kGroups];
    PagedWork work = source.MakeTile(place.tile, place.head);
    const int64_t walk = static_cast<int64_t>(place.head) * source.schedule.max_tiles + place.tile;
    const WalkSplits splits = plan.walks[walk];
    const int last = work.position / kTileKeys;
    const int first = min(source.schedule.boundary[walk], work.position / kPageTokens) / 2;
    const int count = NumKeySplits(first, last, splits.shift);
    const int wanted = item % kGroups * kRows + thread / kRowThreads;
    const int row = min(wanted, work.count - 1);
    const int64_t partial_row = static_cast<int64_t>(splits.first_row) + row;
    const float2* softmax = reinterpret_cast<const float2*>(plan.softmax) + partial_row;
    const float4* partial =
        reinterpret_cast<const float4*>(plan.out) + partial_row * kRowThreads + column;

    float max = -INFINITY;
    for (int i = column; i < count; i += kRowThreads) {
      max = fmaxf(max, softmax[static_cast<int64_t>(i) * work.count].x);
    }
    max = WarpMax<kRowThreads>(max);
    float sum = 0;
    float4 out{0, 0, 0, 0};
#pragma unroll kMergeUnroll
    for (int i = 0; i < count; ++i) {
      const int64_t at = static_cast<int64_t>(i) * work.count;
      const float2 of_split = softmax[at];
      const float4 x = partial[at * kRowThreads];
      const float weight = exp2f(of_split.x - max);
      sum = fmaf(weight, of_split.y, sum);
      out.x = fmaf(weight, x.x, out.x);
      out.y = fmaf(weight, x.y, out.y);
      out.z = fmaf(weight, x.z, out.z);
      out.w = fmaf(weight, x.w, out.w);
    }
    if (wanted >= work.count) continue;
    const float scale = sum > 0 ? 1 / sum : 0;
    *reinterpret_cast<uint2*>(source.OutRow<kHeadDim>(work, row) + 4 * column) = {
        PackBf16(out.x * scale, out.y * scale), PackBf16(out.z * scale, out.w * scale)};
    if (column == 0) source.StoreLogSum(work, row, true, max, sum);
  }
}

}  // namespace

cudaError_t PlanKeySplits(const BatchView& batch, int q_heads, const StepSchedule& schedule,
                          cudaStream_t stream) {
  const size_t shared = static_cast<size_t>(batch.num_seqs) * sizeof(int32_t);
  return Launch(PlanKeySplitsKernel, dim3(1), dim3(kPlanThreads), shared, stream, batch, q_heads,
                schedule);
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
