// Decode attention of query heads that share a kv head, up to eight at a time: as split.cu, but a
// warp processes each half page for all of them, by tensor core products. group_tile.cuh says which
// lane holds what; splits.cuh assigns splits to blocks. Here a seq_head stands for the heads that
// are computed together. Invariant: a row's result depends on its heads' pages alone.
#include <cmath>
#include <cstdint>

#include "kernels/cuda/attention/decode/group_softmax.cuh"
#include "kernels/cuda/attention/decode/group_tile.cuh"
#include "kernels/cuda/attention/decode/loads.cuh"
#include "kernels/cuda/attention/decode/splits.cuh"
#include "kernels/cuda/ptx/dependent_launch.cuh"
#include "kernels/cuda/runtime/head_dim.h"
#include "kernels/cuda/runtime/launch.h"

namespace fox::cuda {
namespace {

using namespace decode;

constexpr int kHeads = kMaxHeadsTogether;
static_assert(kHeads == 8, "the columns of a product");
// Splits whose partial results a warp loads at once when it merges.
constexpr int kMergeDepth = 16;
static_assert(kWarp % kMergeDepth == 0);

// The warps' parts of a split.
template <int kHeadDim>
struct GroupParts {
  // Rows begin at different banks, for Put.
  alignas(16) float out[kWarps][kHeads][kHeadDim + 4];
  float max[kWarps][kHeads];
  float sum[kWarps][kHeads];

  // The calling warp's part of `heads` heads; a barrier must follow.
  __device__ void Put(const GroupSoftmax<kHeadDim>& softmax, int heads) {
    const int r = LaneQuery(), c = Lane() % 4;
#pragma unroll
    for (int q = 0; q < 2; ++q) {
      if (2 * c + q >= heads) continue;
#pragma unroll
      for (int i = 0; i < kHeadDim / 64; ++i) {
        float4* to = reinterpret_cast<float4*>(&out[Warp()][2 * c + q][64 * i + 8 * r]);
#pragma unroll
        for (int p = 0; p < 4; p += 2) {
          const float(&x)[4] = softmax.out[4 * i + p], (&y)[4] = softmax.out[4 * i + p + 1];
          to[p / 2] = {x[q], x[q + 2], y[q], y[q + 2]};
        }
      }
    }
    const float quad_sum = QuadSum(softmax.sum);
    if (c == 0) {
      max[Warp()][r] = softmax.max;
      sum[Warp()][r] = quad_sum;
    }
  }

  // The block's maximum, sum and out[t] of a head, warps in order. Warps without keys have
  // the least maximum and so no weight; at least one warp has keys.
  __device__ void Merge(int head, int t, float& all_max, float& all_sum, float& all_out) const {
    all_max = max[0][head];
    all_sum = all_out = 0;
#pragma unroll
    for (int w = 1; w < kWarps; ++w) all_max = fmaxf(all_max, max[w][head]);
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      const float weight = exp2f(max[w][head] - all_max);
      all_sum = fmaf(weight, sum[w][head], all_sum);
      all_out = fmaf(weight, out[w][head][t], all_out);
    }
  }
};

template <int kHeadDim, typename Part>
struct GroupShared {
  static constexpr int kBuffers = kHeadDim == 128 ? 1 : 2;  // two: one barrier a split is enough
  typename GroupTile<kHeadDim, Part>::Room tiles[kWarps];
  GroupParts<kHeadDim> split[kBuffers];
  KeptGroup<kHeadDim, Part> seq_heads[kWarps][2];
};

template <int kHeadDim>
__device__ void StoreHead(const Decode& a, const SeqHead& seq_head, int head, float max, float sum,
                          const float2 (&out)[LaneWords<kHeadDim>::kCount],
                          const OutputFactors<kHeadDim>& factors) {
  StoreRow(a.params, a.transform, seq_head.row, seq_head.head + head, max, sum, out, factors);
}

// Partial results lie by split, then head: maximum and sum, out[kHeadDim].
template <int kHeadDim>
__device__ float2* PartialOf(const Decode& a, int split, int head) {
  const int64_t result = static_cast<int64_t>(split) * a.together + head;
  return reinterpret_cast<float2*>(a.schedule.partial + result * PartialFloats(kHeadDim));
}

// Merges the warps' parts of a split: into the output if the seq_head has no other split, else as
// partial results. Every fourth head is a warp's own.
template <int kHeadDim, typename Part>
__device__ void FinishSplit(const Decode& a, const KeptGroup<kHeadDim, Part>& kept, int split,
                            const GroupSoftmax<kHeadDim>& softmax, GroupParts<kHeadDim>& parts) {
  using W = LaneWords<kHeadDim>;
  const SeqHead& seq_head = kept.seq_head;
  const bool whole = seq_head.end - seq_head.begin == 1;
  OutputFactors<kHeadDim> factors;  // requested before the barrier
  const int own = min(Warp(), kept.heads - 1);
  if (whole) factors.Load(a.transform, seq_head.row, seq_head.head + own);
  if (GroupShared<kHeadDim, Part>::kBuffers == 1) __syncthreads();
  parts.Put(softmax, kept.heads);
  __syncthreads();
  for (int head = Warp(); head < kept.heads; head += kWarps) {
    float max, sum;
    float2 out[W::kCount];
#pragma unroll
    for (int i = 0; i < W::kCount; ++i) {
      parts.Merge(head, 2 * W::At(i), max, sum, out[i].x);
      parts.Merge(head, 2 * W::At(i) + 1, max, sum, out[i].y);
    }
    if (whole) {
      if (head != own) factors.Load(a.transform, seq_head.row, seq_head.head + head);
      StoreHead(a, seq_head, head, max, sum, out, factors);
      continue;
    }
    float2* partial = PartialOf<kHeadDim>(a, split, head);
#pragma unroll
    for (int i = 0; i < W::kCount; ++i) partial[kPartialHeader / 2 + W::At(i)] = out[i];
    if (Lane() == 0) partial[0] = {max, sum};
  }
}

// Merges a head's partial results, its splits in order. By a warp.
template <int kHeadDim, typename Part>
__device__ void MergeHead(const Decode& a, const KeptGroup<kHeadDim, Part>& kept, int head) {
  using W = LaneWords<kHeadDim>;
  const SeqHead& seq_head = kept.seq_head;
  const int count = seq_head.end - seq_head.begin,
            stride = a.together * PartialFloats(kHeadDim) / 2;
  const float2* partial = PartialOf<kHeadDim>(a, seq_head.begin, head);
  const auto header_of = [&](int split) {
    return split < count ? LoadCoherent(partial + split * stride) : float2{-FLT_MAX, 0};
  };
  float2 part[kMergeDepth][W::kCount];
  const auto load_parts = [&](int first) {
#pragma unroll
    for (int u = 0; u < kMergeDepth; ++u) {
      const float2* split = partial + min(first + u, count - 1) * stride + kPartialHeader / 2;
#pragma unroll
      for (int i = 0; i < W::kCount; ++i) part[u][i] = LoadCoherent(split + W::At(i));
    }
  };
  // All loads of up to kMergeDepth splits are under way at once: one round trip to the L2.
  OutputFactors<kHeadDim> factors;
  factors.Load(a.transform, seq_head.row, seq_head.head + head);
  float2 header = header_of(Lane());
  load_parts(0);
  float max = header.x;
  for (int i = kWarp + Lane(); i < count; i += kWarp) max = fmaxf(max, header_of(i).x);
  max = WarpMax(max);
  float sum = 0, weight = 0;
  float2 out[W::kCount] = {};
#pragma unroll 1
  for (int first = 0; first < count; first += kMergeDepth) {
    if (first > 0) load_parts(first);
    if (first % kWarp == 0) {
      if (first > 0) header = header_of(first + Lane());
      weight = first + Lane() < count ? exp2f(header.x - max) : 0.0f;
      sum = fmaf(weight, header.y, sum);
    }
#pragma unroll
    for (int u = 0; u < kMergeDepth; ++u) {
      const float of_split = FromLane(weight, first % kWarp + u);
#pragma unroll
      for (int i = 0; i < W::kCount; ++i) {
        out[i].x = fmaf(of_split, part[u][i].x, out[i].x);
        out[i].y = fmaf(of_split, part[u][i].y, out[i].y);
      }
    }
  }
  StoreHead(a, seq_head, head, max, WarpSum(sum), out, factors);
}

// True if the calling warp, which has written `done` of a head's partial results, is the last to do
// so; it then sees all of them.
__device__ bool IsComplete(const Decode& a, const SeqHead& seq_head, int head, int done) {
  __syncwarp();
  const int count = seq_head.end - seq_head.begin;
  if (done == count) return true;
  bool last = false;
  if (Lane() == 0) {
    // The addition releases the results that the warp stored before the first __syncwarp, and
    // acquires other warps' results, which the warp reads behind the second __syncwarp.
    int32_t* arrival_counter = a.schedule.arrival_counter + seq_head.index + head;
    last = AtomicAddAcqRel(arrival_counter, done) + done == count;
    if (last) *arrival_counter = 0;
  }
  const bool complete = __any_sync(kAllLanes, last) != 0;
  __syncwarp();
  return complete;
}

// Counts the heads' pages; called with their first split.
template <int kHeadDim, typename Part>
__device__ void CountGroupPages(const Decode& a, const KeptGroup<kHeadDim, Part>& kept) {
  using Count = unsigned long long;
  const int seq = kept.seq_head.index / a.kv.shape.q_heads;
  if (a.params.blocks_total != nullptr) {
    atomicAdd(reinterpret_cast<Count*>(a.params.blocks_total + seq),
              static_cast<Count>(kept.heads) * static_cast<Count>(NumPages(kept.seq_head)));
  }
  if (a.params.blocks_pruned != nullptr) {
    atomicAdd(reinterpret_cast<Count*>(a.params.blocks_pruned + seq),
              static_cast<Count>(kept.heads) * static_cast<Count>(kept.seq_head.first_live));
  }
}

template <int kHeadDim, typename Part>
__global__ void __launch_bounds__(kThreads, kGroupBlocks<kHeadDim, Part>)
    DecodeGroupsKernel(const __grid_constant__ Decode a) {
  using Shared = GroupShared<kHeadDim, Part>;
  extern __shared__ __align__(128) unsigned char memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  if (!a.reads_early) WaitOnDependencies();
  const Start start = LoadStart(a);
  const SeqHead& seq_head = start.seq_head;
  if (start.first == start.last) {
    // One block must wait, so that the end of this kernel implies the end of all earlier ones.
    if (blockIdx.x == 0) WaitOnDependencies();
    return;
  }

  // As in split.cu: everything but q and gates is loaded before the wait, and the row's own page is
  // loaded again.
  using Kept = KeptGroup<kHeadDim, Part>;
  Kept* kept = shared.seq_heads[Warp()];
  Cursor next{0, start.first, 0, 0};
  EnterSplit(seq_head, next);
  HalfPage half_page = HalfPageAt(start, next.iteration);
  const HalfPage second = HalfPageAt(start, min(next.iteration + 1, next.iteration_end - 1));
  GroupTile<kHeadDim, Part> tile(shared.tiles[Warp()]);
  PrefetchGroupGates<Part>(a, seq_head, half_page);
  tile.Load(a, half_page);
  if (next.iteration + 1 < next.iteration_end) {
    PrefetchGroupGates<Part>(a, seq_head, second);
    PrefetchTiles<kHeadDim, Part>(a, second);
  }
  PrefetchOutputConstants<kHeadDim>(a.transform, seq_head.head, NumHeads(a, seq_head.group_head));
  TriggerDependents();
  WaitOnDependencies();
  if (half_page.own) tile.LoadAgain(a, half_page);
  const typename Kept::Words row = Kept::LoadRow(a, seq_head);
  GroupGate gate = LoadGroupGate<Part>(a, seq_head, half_page);
  if (Lane() == 0) kept[0].seq_head = seq_head;
  kept[0].Take(a, row);
  FetchNextSeqHead(a, start.last, kept, 0);
  GroupSoftmax<kHeadDim> softmax;
  int buffer = 0;
  for (bool more = true; more;) {
    const Cursor now = next;
    const int valid = half_page.valid;
    more = Advance(start.last, kept, next);
    half_page = HalfPageAt(a, kept[next.slot].seq_head, next.iteration, more);
    tile.WaitForKeys();
    const GroupWeights weights = GroupScoresToProbs(kept[now.slot], tile, gate, valid, softmax);
    // The gates of the next half page, and gates that are not used behind the block's last one:
    // with a branch around the call the compiler would copy the gates, and so wait for them.
    gate = LoadGroupGate<Part>(a, kept[next.slot].seq_head, half_page);
    tile.NextKeys(a, half_page);
    tile.WaitForValues();
    AddGroupValues(weights, tile, softmax);
    tile.NextValues(a, half_page, more);
    if (next.split == now.split) continue;

    const Kept& done = kept[now.slot];
    if constexpr (kHasExponents<Part>) softmax.MultiplyOut(softmax.scale);
    FinishSplit(a, done, now.split, softmax, shared.split[buffer]);
    softmax = GroupSoftmax<kHeadDim>();
    buffer = (buffer + 1) % Shared::kBuffers;
    const int begin = done.seq_head.begin, end = done.seq_head.end;
    if ((!more || next.slot != now.slot) && end - begin > 1) {
      const int count = min(end, start.last) - max(begin, start.first);
      for (int head = Warp(); head < done.heads; head += kWarps) {
        if (IsComplete(a, done.seq_head, head, count)) MergeHead(a, done, head);
      }
    }
    if (threadIdx.x == 0 && now.split == begin) CountGroupPages(a, done);
    if (next.slot != now.slot) {
      kept[next.slot].Load(a);
      FetchNextSeqHead(a, start.last, kept, next.slot);
    }
  }
}

template <int kHeadDim, typename Part>
cudaError_t LaunchFor(const Decode& arguments, cudaStream_t stream) {
  constexpr size_t kBytes = sizeof(GroupShared<kHeadDim, Part>);
  const void* kernel = KernelAddress(DecodeGroupsKernel<kHeadDim, Part>);
  if (cudaError_t error = AllowDynamicSmem<kBytes>(kernel); error != cudaSuccess) return error;
  // The share must hold the shared memory of all blocks that an SM is to have.
  constexpr bool kTakesAll =
      kGroupBlocks<kHeadDim, Part> * (kBytes + kReservedSmem) > kAttentionSmem;
  return Launch(DecodeGroupsKernel<kHeadDim, Part>,
                static_cast<unsigned>(arguments.schedule.decode_blocks), kThreads,
                SmemConfig(kBytes, kTakesAll ? Carveout::kMax : DecodeCarveout(arguments.batch)),
                stream, arguments);
}

}  // namespace

cudaError_t DecodeGroupsBlocks(const PagedKvShape& shape, int* blocks) {
  return DispatchHeadDim<64>(shape.head_dim, [&]<int kHeadDim>() {
    return DispatchPart(shape.dtype, [&]<typename Part>() {
      const void* kernel = KernelAddress(DecodeGroupsKernel<kHeadDim, Part>);
      constexpr size_t kBytes = sizeof(GroupShared<kHeadDim, Part>);
      if (cudaError_t error = AllowDynamicSmem<kBytes>(kernel); error != cudaSuccess) return error;
      return ResidentBlocks(kernel, kThreads, kBytes, blocks);
    });
  });
}

cudaError_t DecodeGroups(const Decode& arguments, cudaStream_t stream) {
  return DispatchHeadDim<64>(arguments.kv.shape.head_dim, [&]<int kHeadDim>() {
    return DispatchPart(arguments.kv.shape.dtype, [&]<typename Part>() {
      return LaunchFor<kHeadDim, Part>(arguments, stream);
    });
  });
}

}  // namespace fox::cuda
