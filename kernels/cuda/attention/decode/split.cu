// Decode attention as one persistent kernel over the step's splits. A warp processes half a page at
// a time: its lanes hold keys and values in registers, 16 bytes each, while the next half page's
// are being loaded. Invariant: the result of a split, and the order in which the splits of a
// (sequence, head) are merged, depend on the seq_head's pages alone. The contract is decode.h;
// step_schedule.h assigns splits to blocks.
#include <cfloat>
#include <cmath>
#include <cstdint>

#include "kernels/core/check.h"
#include "kernels/cuda/attention/decode/decode.h"
#include "kernels/cuda/attention/decode/loads.cuh"
#include "kernels/cuda/attention/decode/softmax.cuh"
#include "kernels/cuda/attention/decode/splits.cuh"
#include "kernels/cuda/ptx/dependent_launch.cuh"
#include "kernels/cuda/ptx/named_barrier.cuh"
#include "kernels/cuda/runtime/head_dim.h"
#include "kernels/cuda/runtime/launch.h"

namespace fox::cuda {
namespace {

using namespace decode;

// The result of a split that is not its window's only one (step_schedule.h).
template <int kHeadDim>
struct alignas(16) SplitPartial {
  float max, sum;
  float unused[2];
  float out[kHeadDim];
};
// Blocks on an SM that the registers must allow: each holds 4 * 32 * kHeadDim numbers of keys, and
// as many of values, in flight; in bf16 and for head_dim 64 and 128, 128 KB in all. Codes take half
// the registers.
template <int kHeadDim, typename Part>
constexpr int kBlocksOfSm = (kHeadDim == 128 ? 2 : 4) + (kHasExponents<Part> ? 1 : 0);
// Number of splits merged at a time: with heads of 64, as many as a window of 16,384 tokens has.
template <int kHeadDim>
constexpr int kMergedTogether = 4096 / kHeadDim;

template <int kHeadDim>
struct Shared {
  WarpParts<kHeadDim, kWarps> split[kWarps];  // of a split, by the warp that merges it
  LaneGroups<kHeadDim> lane_groups[kWarps];
  KeptSeqHead<kHeadDim> seq_heads[kWarps][2];
  KeptSeqHead<kHeadDim> waiting;  // that earlier blocks began, for when all other work is done
  PartialMerges<kHeadDim> merges;
  SplitPartial<kHeadDim> partials[kMergedTogether<kHeadDim>];
};

template <int kHeadDim>
__device__ SplitPartial<kHeadDim>* PartialsFrom(const Decode& a, int split) {
  static_assert(sizeof(SplitPartial<kHeadDim>) == PartialFloats(kHeadDim) * sizeof(float));
  return reinterpret_cast<SplitPartial<kHeadDim>*>(a.schedule.partial) + split;
}

// ---- Results.

// Merges the warps' parts of a split: into the output if the seq_head has no other split, else as a
// partial result. The warps take turns, so each waits for the others at its own turn alone. Between
// two parts in the same buffer a warp has such a turn, to which the buffer's merger comes with its
// merge done.
template <int kHeadDim>
__device__ void FinishSplit(const Decode& a, const KeptSeqHead<kHeadDim>& kept, int split,
                            const Softmax& softmax, Shared<kHeadDim>& shared) {
  using W = LaneWords<kHeadDim>;
  const int turn = split % kWarps;
  WarpParts<kHeadDim, kWarps>& parts = shared.split[turn];
  parts.Put(Warp(), softmax, shared.lane_groups[Warp()]);
  const bool own_turn = Warp() == turn;
  MeetInTurn<kThreads, kWarps>(turn, own_turn);
  if (!own_turn) return;
  float max, sum;
  float2 out[W::kCount];
  parts.Merge(max, sum, out);
  if (kept.seq_head.end - kept.seq_head.begin == 1) return StoreRow(a, kept, max, sum, out);
  SplitPartial<kHeadDim>& partial = *PartialsFrom<kHeadDim>(a, split);
  // Each word is stored once: a second store could come after the merge that marked it absent.
  if (Lane() < W::kWords) {
#pragma unroll
    for (int i = 0; i < W::kCount; ++i) {
      StoreCoherent(reinterpret_cast<float2*>(partial.out) + W::At(i), out[i]);
    }
  }
  if (Lane() == 0) StoreCoherent(reinterpret_cast<float4*>(&partial), float4{max, sum, 0, 0});
}

// The words of a partial result are their own flags, which saves a fence and an atomic in the time
// that all wait for: absent until their block has stored them, and again once they have been taken.
// No arithmetic results in a NaN of these bits.
constexpr uint32_t kAbsent = 0xffffffffu;
__device__ __forceinline__ bool IsAbsent(const uint4& x) {
  return x.x == kAbsent || x.y == kAbsent || x.z == kAbsent || x.w == kAbsent;
}

// To shared memory, by the block, as they arrive.
template <int kHeadDim>
__device__ void TakePartials(SplitPartial<kHeadDim>* from, int count, SplitPartial<kHeadDim>* to) {
  constexpr int kAtOnce = 4;
  auto* words = reinterpret_cast<uint4*>(from);
  const int end = count * static_cast<int>(sizeof(*from) / sizeof(uint4));
  for (int first = static_cast<int>(threadIdx.x); first < end; first += kAtOnce * kThreads) {
    uint4 taken[kAtOnce];
#pragma unroll
    for (int u = 0; u < kAtOnce; ++u) {
      taken[u] = LoadCoherent(words + min(first + u * kThreads, end - 1));
    }
#pragma unroll
    for (int u = 0; u < kAtOnce; ++u) {
      const int at = first + u * kThreads;
      if (at >= end) break;
      while (IsAbsent(taken[u])) taken[u] = LoadCoherent(words + at);
      reinterpret_cast<uint4*>(to)[at] = taken[u];
      StoreCoherent(words + at, uint4{kAbsent, kAbsent, kAbsent, kAbsent});
    }
  }
}

// Merges a seq_head's partial results, which may be on their way; warp w computes merge w.
template <int kHeadDim>
__device__ void MergeSplits(const Decode& a, const KeptSeqHead<kHeadDim>& kept,
                            Shared<kHeadDim>& shared) {
  constexpr int kColumns = kHeadDim < 2 * kWarp ? 1 : kHeadDim / (2 * kWarp);  // of two dims a lane
  constexpr int kTogether = kMergedTogether<kHeadDim>;
  static_assert(kTogether % kWarps == 0);
  const SeqHead& seq_head = kept.seq_head;
  SplitPartial<kHeadDim>* partials = PartialsFrom<kHeadDim>(a, seq_head.begin);
  const int count = seq_head.end - seq_head.begin;
  const auto dim_of = [](int column) { return (column * kWarp + Lane()) * 2 % kHeadDim; };
  float max = -FLT_MAX;
  if (count > kTogether) {
    for (int i = Lane(); i < count; i += kWarp) {
      float of_split;
      do of_split = LoadCoherent(&partials[i].max);
      while (__float_as_uint(of_split) == kAbsent);
      max = fmaxf(max, of_split);
    }
    __syncthreads();  // all have seen the maxima
  }
  TakePartials(partials, min(count, kTogether), shared.partials);
  __syncthreads();
  if (count <= kTogether) {
    for (int i = Lane(); i < count; i += kWarp) max = fmaxf(max, shared.partials[i].max);
  }
  max = WarpMax(max);

  float sum = 0;
  float2 out[kColumns] = {};
  for (int first = 0;;) {
    const int here = min(count - first, kTogether);
#pragma unroll 4
    for (int i = Warp(); i < here; i += kWarps) {
      const SplitPartial<kHeadDim>& partial = shared.partials[i];
      const float weight = exp2f(partial.max - max);
      sum = fmaf(weight, partial.sum, sum);
#pragma unroll
      for (int j = 0; j < kColumns; ++j) {
        const float2 x = *reinterpret_cast<const float2*>(&partial.out[dim_of(j)]);
        out[j].x = fmaf(weight, x.x, out[j].x);
        out[j].y = fmaf(weight, x.y, out[j].y);
      }
    }
    first += kTogether;
    if (first >= count) break;
    __syncthreads();
    TakePartials(partials + first, min(count - first, kTogether), shared.partials);
    __syncthreads();
  }
#pragma unroll
  for (int j = 0; j < kColumns; ++j) {
    *reinterpret_cast<float2*>(&shared.merges.out[Warp()][dim_of(j)]) = out[j];
  }
  if (Lane() == 0) shared.merges.sum[Warp()] = sum;
  __syncthreads();
  shared.merges.Store(a, kept, max);
}

template <int kHeadDim>
__device__ __forceinline__ void KeepWaiting(const KeptSeqHead<kHeadDim>& kept,
                                            KeptSeqHead<kHeadDim>& waiting) {
  if (Warp() > 0) return;
  constexpr int kWords = sizeof(kept) / sizeof(uint32_t);
  for (int i = Lane(); i < kWords; i += kWarp) {
    reinterpret_cast<uint32_t*>(&waiting)[i] = reinterpret_cast<const uint32_t*>(&kept)[i];
  }
}

// ---- The kernel.

template <int kHeadDim, typename Part>
__global__ void __launch_bounds__(kThreads, kBlocksOfSm<kHeadDim, Part>)
    DecodeKernel(const __grid_constant__ Decode a) {
  using L = Layout<kHeadDim>;
  __shared__ Shared<kHeadDim> shared;
  if (!a.reads_early) WaitOnDependencies();
  const Start start = LoadStart(a);
  const SeqHead& seq_head = start.seq_head;
  if (start.first == start.last) {
    // One block must wait, so that the end of this kernel implies the end of all earlier ones.
    if (blockIdx.x == 0) WaitOnDependencies();
    return;
  }

  // Everything but q and gates is loaded before the wait. The row's own page may be half written
  // then, so it is loaded again.
  KeptSeqHead<kHeadDim>* seq_heads = shared.seq_heads[Warp()];
  Cursor next{0, start.first, 0, 0};
  EnterSplit(seq_head, next);
  HalfPage half_page = HalfPageAt(start, next.iteration);
  const HalfPage second = HalfPageAt(start, min(next.iteration + 1, next.iteration_end - 1));
  Part keys[L::kLoads], values[L::kLoads];
  PrefetchGates<Part>(a, seq_head, half_page);
  LoadTile<kHeadDim>(a.kv.keys, half_page, keys);
  LoadTile<kHeadDim>(a.kv.values, half_page, values);
  PrefetchGates<Part>(a, seq_head, second);
  PrefetchTiles<kHeadDim, Part>(a, second);
  PrefetchOutputConstants<kHeadDim>(a.transform, seq_head.head);
  TriggerDependents();
  if (threadIdx.x == 0) shared.waiting.seq_head.end = 0;
  WaitOnDependencies();
  if (half_page.own) {
    LoadTileAgain<kHeadDim>(a.kv.keys, half_page, keys);
    LoadTileAgain<kHeadDim>(a.kv.values, half_page, values);
  }
  const Row<kHeadDim> row = LoadRow<kHeadDim>(a, seq_head);
  Gate gate = LoadGate<kHeadDim, Part>(a, seq_head, half_page);
  if (Lane() == 0) seq_heads[0].seq_head = seq_head;
  seq_heads[0].Take(row);
  FetchNextSeqHead(a, start.last, seq_heads, 0);
  Softmax softmax;
  for (bool more = true; more;) {
    const Cursor now = next;
    const int valid = half_page.valid;
    more = Advance(start.last, seq_heads, next);
    half_page = HalfPageAt(a, seq_heads[next.slot].seq_head, next.iteration, more);
    // As soon as this half page's keys have been used, the next one's are loaded into their
    // registers; likewise the values. No branches, because the compiler waits for loads where paths
    // meet.
    const float weight = ScoresToProbs<kHeadDim>(seq_heads[now.slot], keys, gate, valid, softmax);
    gate = LoadGate<kHeadDim, Part>(a, seq_heads[next.slot].seq_head, half_page);
    LoadTile<kHeadDim>(a.kv.keys, half_page, keys);
    AddValues<kHeadDim>(weight, values, softmax);
    LoadTile<kHeadDim>(a.kv.values, half_page, values);
    if (next.split == now.split) continue;

    const KeptSeqHead<kHeadDim>& done = seq_heads[now.slot];
    const int begin = done.seq_head.begin, end = done.seq_head.end;
    FinishSplit(a, done, now.split, softmax, shared);
    softmax = Softmax();
    // The block with a window's last split merges it. For other blocks it waits last of all: they
    // come before it, so they are running, and none of them waits for it.
    const bool ends = now.split == end - 1 && end - begin > 1;
    const bool own = begin >= start.first;
    if (ends && !own) KeepWaiting(done, shared.waiting);
    if (threadIdx.x == 0 && now.split == begin) CountPages(a, done.seq_head);
    if (!more || (ends && own)) {
#pragma unroll 1
      for (int i = ends && own ? 0 : 1; i < (more ? 1 : 2); ++i) {
        __syncthreads();  // no one reads the merge before
        const KeptSeqHead<kHeadDim>& merged = i == 0 ? done : shared.waiting;
        if (merged.seq_head.end > 0) MergeSplits(a, merged, shared);
      }
    }
    if (next.slot != now.slot) {
      seq_heads[next.slot].Load(a);
      FetchNextSeqHead(a, start.last, seq_heads, next.slot);
    }
  }
}

template <int kHeadDim, typename Part>
cudaError_t LaunchFor(const Decode& arguments, cudaStream_t stream) {
  return Launch(DecodeKernel<kHeadDim, Part>,
                static_cast<unsigned>(arguments.schedule.decode_blocks), kThreads,
                SmemConfig(0, DecodeCarveout(arguments.batch)), stream, arguments);
}

}  // namespace

cudaError_t DecodeBlocks(const PagedKvShape& shape, int* blocks) {
  if (HeadsTogether(shape) > 1) return DecodeGroupsBlocks(shape, blocks);
  return DispatchHeadDim(shape.head_dim, [&]<int kHeadDim>() {
    return DispatchPart(shape.dtype, [&]<typename Part>() {
      return ResidentBlocks(KernelAddress(DecodeKernel<kHeadDim, Part>), kThreads, 0, blocks);
    });
  });
}

cudaError_t DecodeAttention(const BatchView& batch, const AttentionParams& params,
                            const PagedKv& kv, const StepSchedule& schedule, bool reads_early,
                            cudaStream_t stream) {
  if (batch.num_seqs == 0) return cudaSuccess;
  FOX_CHECK(!reads_early || batch.num_rows == batch.num_seqs);
  const int together = HeadsTogether(kv.shape);
  const Decode arguments{
      .batch = batch,
      .params = params,
      .transform = MakeOutputTransformArguments(
          params, schedule.RowSums(params.layer, kv.shape.q_heads), kv.shape.q_heads),
      .kv = kv,
      .schedule = schedule,
      .group = kv.shape.group(),
      .together = together,
      .reads_early = reads_early};
  if (together > 1) return DecodeGroups(arguments, stream);
  if (schedule.by_clusters) return DecodeCluster(arguments, stream);
  return DispatchHeadDim(kv.shape.head_dim, [&]<int kHeadDim>() {
    return DispatchPart(kv.shape.dtype, [&]<typename Part>() {
      return LaunchFor<kHeadDim, Part>(arguments, stream);
    });
  });
}

}  // namespace fox::cuda
