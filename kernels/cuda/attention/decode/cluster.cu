// One cluster of blocks per (sequence, query head). The splits of its window go to the blocks two
// at a time, each to four warps; a block without splits ends at once, so a short window costs one
// block. The first block merges. Invariant: every sum has the terms and the order of split.cu's.
#include <cfloat>
#include <cstdint>

#include "kernels/cuda/attention/decode/decode.h"
#include "kernels/cuda/attention/decode/loads.cuh"
#include "kernels/cuda/attention/decode/softmax.cuh"
#include "kernels/cuda/attention/decode/splits.cuh"
#include "kernels/cuda/ptx/cluster.cuh"
#include "kernels/cuda/ptx/dependent_launch.cuh"
#include "kernels/cuda/ptx/mbarrier.cuh"
#include "kernels/cuda/runtime/head_dim.h"
#include "kernels/cuda/runtime/launch.h"

namespace fox::cuda {
namespace {

using namespace decode;

// The largest portable cluster. Twice as many blocks of half as many warps were slower, because few
// such clusters fit at a time; so were 4 blocks in more turns, by 2 us a layer.
constexpr int kBlocks = kClusterBlocks;
constexpr int kBlockWarps = kClusterBlockSplits * kWarps;
constexpr int kBlockThreads = kBlockWarps * kWarp;
constexpr int kBlockSplits = kClusterBlockSplits;
constexpr int kSplitsAtOnce = kBlocks * kBlockSplits;
constexpr int kMaxPages = static_cast<int>(kSmallBatchTokens / kPageTokens);
constexpr int kMaxWindowSplits = kMaxPages >> kMinSplitShift;
constexpr int kRounds = kMaxWindowSplits / kSplitsAtOnce;
static_assert(kMaxPages < kLongWindowPages, "all splits are of the smallest size");
static_assert(kRounds * kSplitsAtOnce == kMaxWindowSplits);

template <int kHeadDim>
struct ClusterShared {
  WarpParts<kHeadDim, kWarps> splits[kRounds * kBlockSplits];  // the block's
  LaneGroups<kHeadDim> lane_groups[kBlockWarps];
  KeptSeqHead<kHeadDim> seq_heads[kBlockWarps];
  // In the first block: the partial results of all blocks, by split of the window.
  struct Partial {
    float max, sum, out[kHeadDim];
  } partials[kMaxWindowSplits];
  Mbarrier arrived;  // counts their bytes
  PartialMerges<kHeadDim> merges;
};

// Moves on in the window; false if the warp's pages are done.
__device__ __forceinline__ bool Advance(const SeqHead& seq_head, Cursor& cursor) {
  if (++cursor.iteration < cursor.iteration_end) return true;
  cursor.split += kSplitsAtOnce;
  if (cursor.split >= seq_head.end) return false;
  EnterSplit(seq_head, kMinSplitShift, cursor);
  return true;
}

// Attends to the warp's half pages: in each of the cluster's turns, the half pages of the warp's
// split. Keys and values of the first one are loaded into registers before the row is.
template <int kHeadDim, typename Part>
__device__ __forceinline__ void Attend(const Decode& a, const Start& start,
                                       ClusterShared<kHeadDim>& shared) {
  using L = Layout<kHeadDim>;
  KeptSeqHead<kHeadDim>& kept = shared.seq_heads[Warp()];
  const SeqHead& seq_head = start.seq_head;
  Cursor cursor{0, start.first + Warp() / kWarps, 0, 0};
  const bool exists = cursor.split < seq_head.end;
  EnterSplit(seq_head, kMinSplitShift, cursor);
  HalfPage half_page = HalfPageAt(start, cursor.iteration, exists);
  int split = cursor.split;
  bool more = exists && Advance(seq_head, cursor);
  HalfPage next = cursor.split == split ? HalfPageAt(start, cursor.iteration, more)
                                        : HalfPageAt(a, seq_head, cursor.iteration, more);
  Part keys[L::kLoads], values[L::kLoads];
  PrefetchGates<Part>(a, seq_head, half_page);
  LoadTile<kHeadDim>(a.kv.keys, half_page, keys);
  LoadTile<kHeadDim>(a.kv.values, half_page, values);
  Cursor ahead = cursor;
  HalfPage later = next;
  while (more) {
    PrefetchGates<Part>(a, seq_head, later);
    PrefetchTiles<kHeadDim, Part>(a, later);
    if (!Advance(seq_head, ahead)) break;
    later = HalfPageAt(a, seq_head, ahead.iteration, true);
  }
  PrefetchOutputConstants<kHeadDim>(a.transform, seq_head.head);
  WaitOnDependencies();
  if (!exists) {
    TriggerDependents();
    return;
  }
  if (half_page.own) {
    LoadTileAgain<kHeadDim>(a.kv.keys, half_page, keys);
    LoadTileAgain<kHeadDim>(a.kv.values, half_page, values);
  }
  const Row<kHeadDim> row = LoadRow<kHeadDim>(a, seq_head);
  Gate gate = LoadGate<kHeadDim, Part>(a, seq_head, half_page);
  if (Lane() == 0) kept.seq_head = seq_head;
  kept.Take(row);
  Softmax softmax;
#pragma unroll 1
  for (;;) {
    // Only when all loads are under way: the products behind this kernel copy their weights at
    // once, and a load then takes twice as long.
    if (!more) TriggerDependents();
    const float weight = ScoresToProbs<kHeadDim>(kept, keys, gate, half_page.valid, softmax);
    WarpParts<kHeadDim, kWarps>& parts =
        shared.splits[split / kSplitsAtOnce * kBlockSplits + Warp() / kWarps];
    // Returns here and not at the loop's end, because the compiler waits for loads where paths
    // meet.
    if (!more) {
      AddValues<kHeadDim>(weight, values, softmax);
      parts.Put(Warp() % kWarps, softmax, shared.lane_groups[Warp()]);
      return;
    }
    const bool split_ends = cursor.split != split;
    split = cursor.split;
    half_page = next;
    gate = LoadGate<kHeadDim, Part>(a, kept.seq_head, half_page);
    LoadTile<kHeadDim>(a.kv.keys, half_page, keys);
    more = Advance(kept.seq_head, cursor);
    next = HalfPageAt(a, kept.seq_head, cursor.iteration, more);
    AddValues<kHeadDim>(weight, values, softmax);
    LoadTile<kHeadDim>(a.kv.values, half_page, values);
    if (!split_ends) continue;
    parts.Put(Warp() % kWarps, softmax, shared.lane_groups[Warp()]);
    softmax = Softmax();
  }
}

// Merges the warps' parts of each of the block's splits: into the output if the window has no other
// split, else as a partial result in the first block, which must have started.
template <int kHeadDim>
__device__ __forceinline__ void FinishSplits(const Decode& a, const KeptSeqHead<kHeadDim>& kept,
                                             int rank, ClusterShared<kHeadDim>& shared) {
  constexpr int kAtOnce = kBlockThreads / kHeadDim;
  const SeqHead& seq_head = kept.seq_head;
  if (seq_head.end == 1) {
    if (Warp() > 0) return;
    float max, sum;
    float2 out[LaneWords<kHeadDim>::kCount];
    shared.splits[0].Merge(max, sum, out);
    return StoreRow(a, kept, max, sum, out);
  }
  const int t = static_cast<int>(threadIdx.x) % kHeadDim;
#pragma unroll
  for (int first = 0; first < kRounds * kBlockSplits; first += kAtOnce) {
    const int i = first + static_cast<int>(threadIdx.x) / kHeadDim;
    const int split = i / kBlockSplits * kSplitsAtOnce + rank * kBlockSplits + i % kBlockSplits;
    if (i >= kRounds * kBlockSplits || split >= seq_head.end) return;
    float max, sum, out;
    shared.splits[i].Merge(t, max, sum, out);
    typename ClusterShared<kHeadDim>::Partial& partial = shared.partials[split];
    SendToBlock(&partial.out[t], 0, out, &shared.arrived);
    if (t == 0) {
      SendToBlock(&partial.max, 0, max, &shared.arrived);
      SendToBlock(&partial.sum, 0, sum, &shared.arrived);
    }
  }
}

// Merges the partial results, in the first block.
template <int kHeadDim>
__device__ __forceinline__ void MergeSplits(const Decode& a, const KeptSeqHead<kHeadDim>& kept,
                                            ClusterShared<kHeadDim>& shared) {
  static_assert(kMaxWindowSplits <= kWarp && kHeadDim % kWarp == 0);
  const int count = kept.seq_head.end;
  const float of_lane = shared.partials[min(Lane(), count - 1)].max;
  const float max = WarpMax(of_lane), lane_weight = exp2f(of_lane - max);
  const int t = static_cast<int>(threadIdx.x) % kHeadDim;
#pragma unroll
  for (int first = 0; first < kWarps; first += kBlockThreads / kHeadDim) {
    const int merge = first + static_cast<int>(threadIdx.x) / kHeadDim;
    if (merge >= kWarps) break;
    float sum = 0, out = 0;
#pragma unroll
    for (int i = 0; i < kMaxWindowSplits / kWarps; ++i) {  // no branches: loads in parallel
      const int split = merge + i * kWarps, at = min(split, count - 1);
      const float of_split = FromLane(lane_weight, at);
      const float weight = split < count ? of_split : 0.0f;
      sum = fmaf(weight, shared.partials[at].sum, sum);
      out = fmaf(weight, shared.partials[at].out[t], out);
    }
    shared.merges.out[merge][t] = out;
    if (t == 0) shared.merges.sum[merge] = sum;
  }
  __syncthreads();
  shared.merges.Store(a, kept, max);
}

template <int kHeadDim, typename Part>
__global__ void FOX_CLUSTER(kBlocks) __launch_bounds__(kBlockThreads, kHeadDim > 64 ? 1 : 2)
    DecodeClusterKernel(const __grid_constant__ Decode a) {
  __shared__ ClusterShared<kHeadDim> shared;
  const int rank = static_cast<int>(blockIdx.x) % kBlocks;
  if (rank == 0 && threadIdx.x == 0) {
    shared.arrived.Init(1);
    PublishBarriers();
  }
  ArriveAtClusterRelaxed();  // the first block has started when partial results are sent to it
  if (!a.reads_early) WaitOnDependencies();
  const Start start = LoadStart(a);
  if (start.first == start.last) {
    // One block must wait, so that the end of this kernel implies the end of all earlier ones. It
    // must not delay the next kernel, which starts when all blocks have triggered it.
    if (rank != 0) return;
    TriggerDependents();
    WaitOnDependencies();
    return;
  }
  Attend<kHeadDim, Part>(a, start, shared);
  __syncthreads();
  WaitForCluster();
  const KeptSeqHead<kHeadDim>& done = shared.seq_heads[0];
  const int splits = done.seq_head.end;
  FinishSplits(a, done, rank, shared);
  if (rank != 0) return;
  if (splits > 1) {
    WaitForSent(&shared.arrived, splits * static_cast<int>(sizeof(shared.partials[0])));
    MergeSplits(a, done, shared);
  }
  if (threadIdx.x == 0) CountPages(a, done.seq_head);
}

template <int kHeadDim, typename Part>
cudaError_t LaunchFor(const Decode& arguments, cudaStream_t stream) {
  const int seq_heads = NumSeqHeads(arguments);
  return Launch(DecodeClusterKernel<kHeadDim, Part>,
                dim3(static_cast<unsigned>(seq_heads * kBlocks)), dim3(kBlockThreads),
                SmemConfig(0, true), stream, arguments);
}

}  // namespace

bool DecodeClusterRuns(const PagedKvShape& shape) {
  return shape.head_dim >= 32 && HeadsTogether(shape) == 1 &&
         HasSm90Code(KernelAddress(DecodeClusterKernel<64, uint4>));
}

cudaError_t DecodeCluster(const Decode& arguments, cudaStream_t stream) {
  return DispatchHeadDim<32>(arguments.kv.shape.head_dim, [&]<int kHeadDim>() {
    return DispatchPart(arguments.kv.shape.dtype, [&]<typename Part>() {
      return LaunchFor<kHeadDim, Part>(arguments, stream);
    });
  });
}

}  // namespace fox::cuda
