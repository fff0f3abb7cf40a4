// Decode attention as one persistent kernel over the step's work items. A warp takes half a page at
// a time: its lanes hold keys and values in registers, 16 bytes each, while those of the next half
// page are on their way. Invariant: what an item computes, and the order in which the items of a
// (sequence, head) pair are merged, depend on the pair's pages alone. The contract is decode.h; who
// owns which items is step_work.h.
#include <cuda_bf16.h>

#include <cfloat>
#include <cmath>
#include <cstdint>

#include "kernels/cuda/attention/decode.h"
#include "kernels/cuda/attention/decode_items.h"
#include "kernels/cuda/attention/decode_loads.h"
#include "kernels/cuda/launch.h"

namespace fox::cuda {
namespace {

using namespace decode;

// Items whose partial results a warp has under way when it merges.
constexpr int kMergeDepth = 4;
constexpr float kLog2E = 1.4426950408889634f;
constexpr float kLn2 = 0.6931471805599453f;

// A softmax in progress, logits in log2 units: `sum` and `out` are this lane's share.
struct Softmax {
  float max = -FLT_MAX;  // of the warp; finite, so that a unit without keys changes nothing
  float sum = 0;
  float out[8] = {};
};

template <int kHeadDim>
struct Shared {
  // Each lane group's sums at an item's end. Two, so that one barrier an item is enough.
  struct alignas(16) Item {
    float out[kWarps][Layout<kHeadDim>::kGroups][kHeadDim];
    float max[kWarps];
    float sum[kWarps];
  } item[2];
  KeptPair<kHeadDim> pairs[kWarps][2];
  // Each warp's share of a pair's items.
  float out[kWarps][kHeadDim];
  float sum[kWarps];
};

__device__ float WarpMax(float x) {
  for (int step = kWarp / 2; step > 0; step /= 2) {
    x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, step));
  }
  return x;
}

__device__ float WarpSum(float x) {
  for (int step = kWarp / 2; step > 0; step /= 2) x += __shfl_xor_sync(kAllLanes, x, step);
  return x;
}

// ---- Arithmetic.

// part[0 .. 2 * kHalf) of 2 * kHalf neighbouring lanes: lane x gets the lanes' sum of part[x]. Two
// halves of the lanes trade what they keep for what they give away, then each goes on by itself.
template <int kHalf>
__device__ float SumAcross(const float (&part)[2 * kHalf]) {
  const bool upper = (Lane() & kHalf) != 0;
  float kept[kHalf];
#pragma unroll
  for (int i = 0; i < kHalf; ++i) {
    const float give = upper ? part[i] : part[i + kHalf];
    const float keep = upper ? part[i + kHalf] : part[i];
    kept[i] = keep + __shfl_xor_sync(kAllLanes, give, kHalf);
  }
  if constexpr (kHalf == 1) {
    return kept[0];
  } else {
    return SumAcross<kHalf / 2>(kept);
  }
}

// The product q.k of this lane's key.
template <int kHeadDim>
__device__ float Product(const float (&q)[8], const uint4 (&keys)[Layout<kHeadDim>::kLoads]) {
  using L = Layout<kHeadDim>;
  float part[L::kLoads];
#pragma unroll
  for (int i = 0; i < L::kLoads; ++i) {
    const uint4 k = keys[i];
    part[i] = q[0] * Low(k.x);
    part[i] = fmaf(q[1], High(k.x), part[i]);
    part[i] = fmaf(q[2], Low(k.y), part[i]);
    part[i] = fmaf(q[3], High(k.y), part[i]);
    part[i] = fmaf(q[4], Low(k.z), part[i]);
    part[i] = fmaf(q[5], High(k.z), part[i]);
    part[i] = fmaf(q[6], Low(k.w), part[i]);
    part[i] = fmaf(q[7], High(k.w), part[i]);
  }
  return SumAcross<L::kLanes / 2>(part);
}

// Takes a unit's keys into `softmax`; gives the weight of this lane's key.
template <int kHeadDim>
__device__ float Weigh(const KeptPair<kHeadDim>& kept,
                       const uint4 (&keys)[Layout<kHeadDim>::kLoads], const Gate& gate, int valid,
                       Softmax& softmax) {
  using L = Layout<kHeadDim>;
  const float scale = kLog2E * (1.0f / sqrtf(static_cast<float>(kHeadDim)));
  const float4* from = reinterpret_cast<const float4*>(kept.q + Lane() % L::kLanes * L::kDims);
  const float4 low = from[0], high = from[1];
  const float q[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
  const float decay = static_cast<float>(kept.base - gate.base) + (kept.local - gate.local);
  const float product = Product<kHeadDim>(q, keys);
  const float logit =
      LaneKey<kHeadDim>() < valid ? fmaf(product, scale, decay * kLog2E) : -INFINITY;
  const float max = fmaxf(softmax.max, WarpMax(logit));
  const float keep = exp2f(softmax.max - max);
  const float weight = exp2f(logit - max);
  softmax.max = max;
  softmax.sum = fmaf(softmax.sum, keep, weight);
#pragma unroll
  for (float& x : softmax.out) x *= keep;
  return weight;
}

template <int kHeadDim>
__device__ void AddValues(float weight, const uint4 (&values)[Layout<kHeadDim>::kLoads],
                          Softmax& softmax) {
  using L = Layout<kHeadDim>;
  float(&out)[8] = softmax.out;
#pragma unroll
  for (int i = 0; i < L::kLoads; ++i) {
    const float w = __shfl_sync(kAllLanes, weight, i, L::kLanes);
    const uint4 v = values[i];
    out[0] = fmaf(w, Low(v.x), out[0]);
    out[1] = fmaf(w, High(v.x), out[1]);
    out[2] = fmaf(w, Low(v.y), out[2]);
    out[3] = fmaf(w, High(v.y), out[3]);
    out[4] = fmaf(w, Low(v.z), out[4]);
    out[5] = fmaf(w, High(v.z), out[5]);
    out[6] = fmaf(w, Low(v.w), out[6]);
    out[7] = fmaf(w, High(v.w), out[7]);
  }
}

// ---- Results.

// Called by the threads t < kHeadDim: o[t] and the softmax's maximum and sum.
template <int kHeadDim>
__device__ void StoreRow(const Decode& a, const Pair& pair, float max, float sum, float out) {
  const int head = pair.index % a.kv.shape.q_heads;
  const int64_t row = pair.row;
  const int t = static_cast<int>(threadIdx.x);
  static_cast<__nv_bfloat16*>(
      a.params.out.data)[row * a.params.out.row_stride + head * kHeadDim + t] =
      __float2bfloat16_rn(__fdividef(out, sum));
  if (t == 0 && a.params.log_sum.data != nullptr) {
    static_cast<float*>(a.params.log_sum.data)[row * a.params.log_sum.row_stride + head] =
        (max + log2f(sum)) * kLn2;
  }
}

// Merges the warps' parts of an item: into the output where the pair has no other item, else as a
// partial result (maximum, sum, out[kHeadDim]).
template <int kHeadDim>
__device__ void FinishItem(const Decode& a, const Pair& pair, int item, const Softmax& softmax,
                           typename Shared<kHeadDim>::Item& shared) {
  using L = Layout<kHeadDim>;
  float4* to = reinterpret_cast<float4*>(
      &shared.out[Warp()][Lane() / L::kLanes][Lane() % L::kLanes * L::kDims]);
  to[0] = {softmax.out[0], softmax.out[1], softmax.out[2], softmax.out[3]};
  to[1] = {softmax.out[4], softmax.out[5], softmax.out[6], softmax.out[7]};
  const float warp_sum = WarpSum(softmax.sum);
  if (Lane() == 0) {
    shared.max[Warp()] = softmax.max;
    shared.sum[Warp()] = warp_sum;
  }
  __syncthreads();
  const int t = static_cast<int>(threadIdx.x);
  if (t >= kHeadDim) return;
  // Warps without keys have the least maximum and so no weight; one at least has keys.
  float max = shared.max[0], sum = 0, out = 0;
#pragma unroll
  for (int w = 1; w < kWarps; ++w) max = fmaxf(max, shared.max[w]);
#pragma unroll
  for (int w = 0; w < kWarps; ++w) {
    const float weight = exp2f(shared.max[w] - max);
    float warp_out = 0;
#pragma unroll
    for (int g = 0; g < L::kGroups; ++g) warp_out += shared.out[w][g][t];
    sum = fmaf(weight, shared.sum[w], sum);
    out = fmaf(weight, warp_out, out);
  }
  if (pair.end - pair.begin == 1) {
    StoreRow<kHeadDim>(a, pair, max, sum, out);
  } else {
    float* partial = a.work.partial + static_cast<int64_t>(item) * (kHeadDim + 2);
    partial[2 + t] = out;
    if (t == 0) {
      partial[0] = max;
      partial[1] = sum;
    }
  }
}

// Counts a pair's pages, for whoever has its first item.
__device__ void CountPages(const Decode& a, const Pair& pair) {
  using Count = unsigned long long;
  const int seq = pair.index / a.kv.shape.q_heads;
  if (a.params.blocks_total != nullptr) {
    atomicAdd(reinterpret_cast<Count*>(a.params.blocks_total + seq),
              static_cast<Count>(NumPages(pair)));
  }
  if (a.params.blocks_skipped != nullptr) {
    atomicAdd(reinterpret_cast<Count*>(a.params.blocks_skipped + seq),
              static_cast<Count>(pair.first_live));
  }
}

// Whether this block, having written `done` of the pair's partial results, is the last to do so; it
// then sees all of them. Behind a barrier either way.
__device__ bool IsComplete(const Decode& a, const Pair& pair, int done) {
  __syncthreads();
  const int count = pair.end - pair.begin;
  if (done == count) return true;
  bool last = false;
  if (threadIdx.x == 0) {
    // Releases what the block's threads wrote before the barrier, acquires for what they read
    // after the next one what other blocks released here.
    int32_t* ticket = a.work.ticket + pair.index;
    int before;
    asm volatile("atom.acq_rel.gpu.global.add.s32 %0, [%1], %2;"
                 : "=r"(before)
                 : "l"(ticket), "r"(done)
                 : "memory");
    last = before + done == count;
    if (last) *ticket = 0;
  }
  return __syncthreads_or(last) != 0;
}

// What a warp has under way of a pair's partial results, one dim in kWarp of each.
template <int kHeadDim>
struct Partials {
  static constexpr int kStride = kHeadDim + 2;
  static constexpr int kColumns = kHeadDim < kWarp ? 1 : kHeadDim / kWarp;
  float max[kMergeDepth], sum[kMergeDepth], out[kMergeDepth][kColumns];

  // Those of items first, first + 4, ...; the last item stands in behind the end.
  __device__ void Load(const float* partial, int first, int count) {
#pragma unroll
    for (int u = 0; u < kMergeDepth; ++u) {
      const float* item = partial + min(first + u * kWarps, count - 1) * kStride;
      max[u] = LoadCoherent(item);
      sum[u] = LoadCoherent(item + 1);
#pragma unroll
      for (int j = 0; j < kColumns; ++j) {
        out[u][j] = LoadCoherent(item + 2 + (j * kWarp + Lane()) % kHeadDim);
      }
    }
  }
};

// Merges a pair's partial results: warp w takes items w, w + 4, ... in order, then the warps' sums
// are added in order.
template <int kHeadDim>
__device__ void MergeItems(const Decode& a, const Pair& pair, Shared<kHeadDim>& shared) {
  using P = Partials<kHeadDim>;
  constexpr int kColumns = P::kColumns;
  const float* partial = a.work.partial + static_cast<int64_t>(pair.begin) * P::kStride;
  const int count = pair.end - pair.begin;
  // The first ones are on their way while the maximum is found.
  float max = LoadCoherent(partial + min(Lane(), count - 1) * P::kStride);
  P items;
  items.Load(partial, Warp(), count);
  for (int i = Lane() + kWarp; i < count; i += kWarp) {
    max = fmaxf(max, LoadCoherent(partial + i * P::kStride));
  }
  max = WarpMax(max);

  float sum = 0, out[kColumns] = {};
  for (int first = Warp();;) {
#pragma unroll
    for (int u = 0; u < kMergeDepth; ++u) {
      const float weight = first + u * kWarps < count ? exp2f(items.max[u] - max) : 0.0f;
      sum = fmaf(weight, items.sum[u], sum);
#pragma unroll
      for (int j = 0; j < kColumns; ++j) out[j] = fmaf(weight, items.out[u][j], out[j]);
    }
    first += kWarps * kMergeDepth;
    if (first >= count) break;
    items.Load(partial, first, count);
  }
#pragma unroll
  for (int j = 0; j < kColumns; ++j) {
    if (Lane() < kHeadDim) shared.out[Warp()][j * kWarp + Lane()] = out[j];
  }
  if (Lane() == 0) shared.sum[Warp()] = sum;
  __syncthreads();
  const int t = static_cast<int>(threadIdx.x);
  if (t >= kHeadDim) return;
  float row_sum = 0, row_out = 0;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) {
    row_sum += shared.sum[w];
    row_out += shared.out[w][t];
  }
  StoreRow<kHeadDim>(a, pair, max, row_sum, row_out);
}

// ---- The kernel.

template <int kHeadDim>
__global__ void __launch_bounds__(kThreads, Layout<kHeadDim>::kBlocks)
    DecodeKernel(const __grid_constant__ Decode a) {
  using L = Layout<kHeadDim>;
  __shared__ Shared<kHeadDim> shared;
  if (!a.after_append_decode) WaitForPrevious();
  Pair pair;
  const ItemRange items = FindItems(a, pair);
  if (items.first == items.last) {
    // Some block must wait, so that the end of this kernel implies that of all before it.
    if (blockIdx.x == 0) WaitForPrevious();
    return;
  }

  // All but q and gates is on its way before the wait. The row's own page may be read half written
  // then, and so is read again.
  KeptPair<kHeadDim>* pairs = shared.pairs[Warp()];
  Cursor next{0, items.first, 0, 0};
  EnterItem(a, pair, next);
  Unit unit = UnitAt(pair, next.round, true);
  const Unit second = UnitAt(pair, min(next.round + 1, next.round_end - 1), true);
  uint4 keys[L::kLoads], values[L::kLoads];
  PrefetchGates(a, pair, unit);
  LoadTile<kHeadDim>(a.kv.keys, unit, keys);
  LoadTile<kHeadDim>(a.kv.values, unit, values);
  PrefetchGates(a, pair, second);
  PrefetchTiles<kHeadDim>(a, second);
  LetNextStart();
  WaitForPrevious();
  const Row<kHeadDim> row = LoadRow<kHeadDim>(a, pair);
  Gate gate = LoadGate<kHeadDim>(a, pair, unit);
  LoadTileAgain<kHeadDim>(a.kv.keys, unit, keys);
  LoadTileAgain<kHeadDim>(a.kv.values, unit, values);
  Keep(pair, row, pairs[0]);
  Softmax softmax;
  int buffer = 0;
  for (bool more = true; more;) {
    const Cursor now = next;
    const int valid = unit.valid;
    more = Advance(a, items.last, pairs, next);
    unit = UnitAt(pairs[next.slot].pair, next.round, more);
    // As soon as this unit's keys have been used, the next one's take their registers; so with
    // the values. No branches here: the compiler would wait for loads where paths meet.
    const float weight = Weigh(pairs[now.slot], keys, gate, valid, softmax);
    gate = LoadGate<kHeadDim>(a, pairs[next.slot].pair, unit);
    LoadTile<kHeadDim>(a.kv.keys, unit, keys);
    AddValues<kHeadDim>(weight, values, softmax);
    LoadTile<kHeadDim>(a.kv.values, unit, values);
    if (next.item == now.item) continue;

    const Pair& done_pair = pairs[now.slot].pair;
    FinishItem<kHeadDim>(a, done_pair, now.item, softmax, shared.item[buffer]);
    softmax = Softmax();
    buffer ^= 1;
    const bool pair_ends = !more || next.slot != now.slot;
    if (pair_ends && done_pair.end - done_pair.begin > 1) {
      const int done = min(done_pair.end, items.last) - max(done_pair.begin, items.first);
      if (IsComplete(a, done_pair, done)) MergeItems<kHeadDim>(a, done_pair, shared);
    }
    if (threadIdx.x == 0 && now.item == done_pair.begin) CountPages(a, done_pair);
  }
}

// As many blocks as the device holds at once.
template <int kHeadDim>
cudaError_t GridSize(int* blocks) {
  int device = 0, processors = 0, per_processor = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error != cudaSuccess) return error;
  error = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
  if (error != cudaSuccess) return error;
  error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per_processor, DecodeKernel<kHeadDim>,
                                                        kThreads, 0);
  *blocks = processors * per_processor;
  return error;
}

template <int kHeadDim>
cudaError_t LaunchFor(const Decode& arguments, cudaStream_t stream) {
  static int blocks = 0;  // one device and one calling thread (kernels/ops.h)
  if (blocks == 0) {
    const cudaError_t error = GridSize<kHeadDim>(&blocks);
    if (error != cudaSuccess) return error;
  }
  const SharedBytes shared(0, arguments.batch.num_rows <= kFewRows);
  return Launch(DecodeKernel<kHeadDim>, dim3(static_cast<unsigned>(blocks)), dim3(kThreads), shared,
                stream, arguments);
}

}  // namespace

cudaError_t DecodeAttention(const BatchView& batch, const AttentionParams& params,
                            const PagedKv& kv, const StepWork& work, cudaStream_t stream) {
  if (batch.num_seqs == 0) return cudaSuccess;
  if (work.item_pages % kRoundPages != 0) return cudaErrorInvalidValue;
  const bool after_append_decode = batch.num_rows == batch.num_seqs;  // else prefill's kernels
  const Decode arguments{batch, params, kv, work, kv.shape.group(), after_append_decode};
  switch (kv.shape.head_dim) {
    case 16:
      return LaunchFor<16>(arguments, stream);
    case 32:
      return LaunchFor<32>(arguments, stream);
    case 64:
      return LaunchFor<64>(arguments, stream);
    case 128:
      return LaunchFor<128>(arguments, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace fox::cuda
