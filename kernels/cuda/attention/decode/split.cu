// Decode attention as one persistent kernel over the step's splits. A warp takes half a page at
// a time: its lanes hold keys and values in registers, 16 bytes each, while those of the next half
// page are on their way. Invariant: what a split computes, and the order in which the splits of a
// (sequence, head) are merged, depend on the seq_head's pages alone. The contract is decode.h; who
// owns which splits is step_schedule.h.
#include <cfloat>
#include <cmath>
#include <cstdint>

#include "kernels/core/check.h"
#include "kernels/cuda/attention/decode/cluster.cuh"
#include "kernels/cuda/attention/decode/decode.h"
#include "kernels/cuda/attention/decode/groups.cuh"
#include "kernels/cuda/attention/decode/loads.cuh"
#include "kernels/cuda/attention/decode/softmax.cuh"
#include "kernels/cuda/attention/decode/splits.cuh"
#include "kernels/cuda/primitives/flagged_words.cuh"
#include "kernels/cuda/ptx/dependent_launch.cuh"
#include "kernels/cuda/runtime/head_dim.h"
#include "kernels/cuda/runtime/launch.h"
#include "kernels/cuda/runtime/overlap_rows.h"

namespace fox::cuda {
namespace {

using namespace decode;

// Splits whose partial results a warp has under way when it merges, in the walk and at its end; as
// many as registers allow.
constexpr int kDepthInWalk = 4, kDepthAtEnd = 16;

template <int kHeadDim>
struct Shared {
  // At a split's end. Two, so that one barrier a split is enough.
  WarpParts<kHeadDim, kWarps> split[2];
  LaneGroups<kHeadDim> lane_groups[kWarps];
  KeptSeqHead<kHeadDim> seq_heads[kWarps][3];  // the first stays
  SplitChains<kHeadDim> chains;
};

// ---- Results.

// Merges the warps' parts of a split: into the output where the seq_head has no other split, else
// as a partial result (maximum, sum, out[kHeadDim]).
template <int kHeadDim>
__device__ void FinishItem(const Decode& a, const KeptSeqHead<kHeadDim>& kept, int split,
                           const Softmax& softmax, int buffer, Shared<kHeadDim>& shared) {
  using W = LaneWords<kHeadDim>;
  WarpParts<kHeadDim, kWarps>& parts = shared.split[buffer];
  parts.Put(Warp(), softmax, shared.lane_groups[Warp()]);
  __syncthreads();
  if (Warp() > 0) return;
  float max, sum;
  float2 out[W::kCount];
  parts.Merge(max, sum, out);
  if (kept.seq_head.end - kept.seq_head.begin == 1) return StoreRow(a, kept, max, sum, out);
  float* partial = a.schedule.partial + static_cast<int64_t>(split) * (kHeadDim + 2);
#pragma unroll
  for (int i = 0; i < W::kCount; ++i) {
    StoreFlagged(partial + 2 + 2 * W::At(i), out[i].x);
    StoreFlagged(partial + 3 + 2 * W::At(i), out[i].y);
  }
  if (Lane() > 0) return;
  StoreFlagged(partial, max);
  StoreFlagged(partial + 1, sum);
}

// What a warp has under way of a seq_head's partial results: of each two dims a lane, and of the
// lane's own split its maximum and its sum.
template <int kHeadDim, int kDepth>
struct Partials {
  static constexpr int kStride = kHeadDim + 2;
  static constexpr int kColumns = kHeadDim < 2 * kWarp ? 1 : kHeadDim / (2 * kWarp);
  uint2 max_and_sum;
  uint2 out[kDepth][kColumns];

  __device__ static int DimOf(int column) { return (column * kWarp + Lane()) * 2 % kHeadDim; }
  __device__ static uint2 At(const float* partial, int split, int count, int place) {
    return LoadCoherent(
        reinterpret_cast<const uint2*>(partial + min(split, count - 1) * kStride + place));
  }

  // Those of splits first, first + 4, ...; the last split stands in past the end.
  __device__ void Load(const float* partial, int first, int count) {
    max_and_sum = At(partial, first + Lane() % kDepth * kWarps, count, 0);
#pragma unroll
    for (int u = 0; u < kDepth; ++u) {
#pragma unroll
      for (int j = 0; j < kColumns; ++j) {
        out[u][j] = At(partial, first + u * kWarps, count, 2 + DimOf(j));
      }
    }
  }
  // Whether all had been stored when they were loaded.
  __device__ bool AreThere() const {
    bool there = max_and_sum.x != 0 && max_and_sum.y != 0;
#pragma unroll
    for (int u = 0; u < kDepth; ++u) {
#pragma unroll
      for (int j = 0; j < kColumns; ++j) there = there && out[u][j].x != 0 && out[u][j].y != 0;
    }
    return __all_sync(kAllLanes, there) != 0;
  }
  // Adds them to a chain, in order.
  __device__ void AddTo(float& sum, float2 (&all)[kColumns], float max, int first,
                        int count) const {
    const bool there = first + Lane() % kDepth * kWarps < count;
    const float of_lane = there ? exp2f(FlaggedFloat(max_and_sum.x) - max) : 0.0f;
#pragma unroll
    for (int u = 0; u < kDepth; ++u) {
      const float weight = FromLane(of_lane, u);
      sum = fmaf(weight, FlaggedFloat(FromLane(max_and_sum.y, u)), sum);
#pragma unroll
      for (int j = 0; j < kColumns; ++j) {
        all[j].x = fmaf(weight, FlaggedFloat(out[u][j].x), all[j].x);
        all[j].y = fmaf(weight, FlaggedFloat(out[u][j].y), all[j].y);
      }
    }
  }
};

// The largest maximum of a seq_head's partial results, as soon as all are there.
__device__ float MaxOfSplits(const float* partial, int stride, int count) {
  float max = -FLT_MAX;
  for (int first = 0; first < count; first += kWarp) {
    const auto* of_lane =
        reinterpret_cast<const uint32_t*>(partial + min(first + Lane(), count - 1) * stride);
    uint32_t word;
    do {
      word = LoadCoherent(of_lane);
    } while (word == 0);
    max = fmaxf(max, FlaggedFloat(word));
  }
  return WarpMax(max);
}

// Merges a seq_head's partial results, which leaves zeros; warp w is chain w.
template <int kHeadDim, int kDepth>
__device__ void MergeSplits(const Decode& a, const KeptSeqHead<kHeadDim>& kept,
                            Shared<kHeadDim>& shared) {
  using P = Partials<kHeadDim, kDepth>;
  const SeqHead& seq_head = kept.seq_head;
  float* partial = a.schedule.partial + static_cast<int64_t>(seq_head.begin) * P::kStride;
  const int count = seq_head.end - seq_head.begin;
  __syncthreads();  // the chains of an earlier one have been read
  P splits;
  splits.Load(partial, Warp(), count);  // on their way while the maximum is found
  const float max = MaxOfSplits(partial, P::kStride, count);

  float sum = 0;
  float2 out[P::kColumns] = {};
  for (int first = Warp();;) {
    while (!splits.AreThere()) splits.Load(partial, first, count);
    splits.AddTo(sum, out, max, first, count);
    first += kWarps * kDepth;
    if (first >= count) break;
    splits.Load(partial, first, count);
  }
#pragma unroll
  for (int j = 0; j < P::kColumns; ++j) {
    *reinterpret_cast<float2*>(&shared.chains.out[Warp()][P::DimOf(j)]) = out[j];
  }
  if (Lane() == 0) shared.chains.sum[Warp()] = sum;
  __syncthreads();
  shared.chains.Store(a, kept, max);
  for (int i = static_cast<int>(threadIdx.x); i < count * P::kStride / 2; i += kThreads) {
    reinterpret_cast<float2*>(partial)[i] = {0, 0};
  }
}

// ---- The kernel.

template <int kHeadDim>
__global__ void __launch_bounds__(kThreads, Layout<kHeadDim>::kBlocks)
    DecodeKernel(const __grid_constant__ Decode a) {
  using L = Layout<kHeadDim>;
  __shared__ Shared<kHeadDim> shared;
  if (!a.after_append_decode) WaitOnDependencies();
  SeqHead seq_head;
  const SplitRange splits = FindSplits(a, seq_head);
  if (splits.first == splits.last) {
    // Some block must wait, so that the end of this kernel implies that of all before it.
    if (blockIdx.x == 0) WaitOnDependencies();
    return;
  }

  // All but q and gates is on its way before the wait. The row's own page may be read half written
  // then, and so is read again.
  auto& seq_heads = shared.seq_heads[Warp()];
  Cursor next{0, splits.first, 0, 0};
  EnterSplit(seq_head, next);
  HalfPage half_page = HalfPageAt(seq_head, next.iteration, true);
  const HalfPage second =
      HalfPageAt(seq_head, min(next.iteration + 1, next.iteration_end - 1), true);
  uint4 keys[L::kLoads], values[L::kLoads];
  PrefetchGates(a, seq_head, half_page);
  LoadTile<kHeadDim>(a.kv.keys, half_page, keys);
  LoadTile<kHeadDim>(a.kv.values, half_page, values);
  PrefetchGates(a, seq_head, second);
  PrefetchTiles<kHeadDim>(a, second);
  PrefetchOutputNorm<kHeadDim>(a.transform, seq_head.head);
  TriggerDependents();
  WaitOnDependencies();
  const Row<kHeadDim> row = LoadRow<kHeadDim>(a, seq_head);
  Gate gate = LoadGate<kHeadDim>(a, seq_head, half_page);
  LoadTileAgain<kHeadDim>(a.kv.keys, half_page, keys);
  LoadTileAgain<kHeadDim>(a.kv.values, half_page, values);
  seq_heads[0].Take(seq_head, row);
  Softmax softmax;
  int buffer = 0;
  for (bool more = true; more;) {
    const Cursor now = next;
    const int valid = half_page.valid;
    more = Advance(a, splits.last, seq_heads, next);
    half_page = HalfPageAt(seq_heads[next.slot].seq_head, next.iteration, more);
    // As soon as this half page's keys have been used, the next one's take their registers; so with
    // the values. No branches here: the compiler would wait for loads where paths meet.
    const float weight = ScoresToProbs(seq_heads[now.slot], keys, gate, valid, softmax);
    gate = LoadGate<kHeadDim>(a, seq_heads[next.slot].seq_head, half_page);
    LoadTile<kHeadDim>(a.kv.keys, half_page, keys);
    AddValues<kHeadDim>(weight, values, softmax);
    LoadTile<kHeadDim>(a.kv.values, half_page, values);
    if (next.split == now.split) continue;

    const KeptSeqHead<kHeadDim>& done = seq_heads[now.slot];
    const int begin = done.seq_head.begin, end = done.seq_head.end;
    FinishItem(a, done, now.split, softmax, buffer, shared);
    softmax = Softmax();
    buffer ^= 1;
    if (now.split + 1 == end && begin >= splits.first && end - begin > 1) {
      MergeSplits<kHeadDim, kDepthInWalk>(a, done, shared);
    }
    if (threadIdx.x == 0 && now.split == begin) CountPages(a, done.seq_head);
  }
  // A seq_head that blocks share is merged by the one that has its last split, behind all its own
  // ones: blocks end at about the same time, so none waits long, and each only for blocks before.
  const SeqHead& shared_head = seq_heads[0].seq_head;
  if (shared_head.begin < splits.first && shared_head.end <= splits.last) {
    MergeSplits<kHeadDim, kDepthAtEnd>(a, seq_heads[0], shared);
  }
}

template <int kHeadDim>
cudaError_t LaunchFor(const Decode& arguments, cudaStream_t stream) {
  int blocks = 0;
  const cudaError_t error =
      ResidentBlocks(KernelAddress(DecodeKernel<kHeadDim>), kThreads, &blocks);
  if (error != cudaSuccess) return error;
  const SmemConfig shared(0, arguments.batch.num_rows <= kOverlapRows);
  return Launch(DecodeKernel<kHeadDim>, dim3(static_cast<unsigned>(blocks)), dim3(kThreads), shared,
                stream, arguments);
}

}  // namespace

cudaError_t DecodeAttention(const BatchView& batch, const AttentionParams& params,
                            const PagedKv& kv, const StepSchedule& schedule,
                            bool after_append_decode, cudaStream_t stream) {
  if (batch.num_seqs == 0) return cudaSuccess;
  FOX_CHECK(!after_append_decode || batch.num_rows == batch.num_seqs);
  const int together = HeadsTogether(kv.shape);
  const Decode arguments{batch,
                         params,
                         MakeOutputTransformArguments(params),
                         kv,
                         schedule,
                         kv.shape.group(),
                         together,
                         after_append_decode};
  if (together > 1) return DecodeGroups(arguments, stream);
  if (batch.small && after_append_decode && DecodeClusterRuns(kv.shape)) {
    return DecodeCluster(arguments, stream);
  }
  return DispatchHeadDim(kv.shape.head_dim,
                         [&]<int kHeadDim>() { return LaunchFor<kHeadDim>(arguments, stream); });
}

}  // namespace fox::cuda
