// The arithmetic of decode attention: a warp adds half pages of keys and values to a running
// softmax; the results of warps and splits are merged. loads.cuh says which lane holds what.
#pragma once

#include <cuda_runtime.h>

#include <cfloat>
#include <cmath>
#include <cstdint>

#include "kernels/cuda/attention/decode/loads.cuh"
#include "kernels/cuda/attention/decode/splits.cuh"
#include "kernels/cuda/primitives/warp.cuh"
#include "kernels/cuda/ptx/fast_math.cuh"

namespace fox::cuda::decode {

// A running softmax, logits in log2 units: `sum` and `out` are this lane's share.
struct Softmax {
  float max = -FLT_MAX;  // of the warp; finite, so that a half page without keys changes nothing
  float sum = 0;
  float out[8] = {};
};

// part[0 .. 2 * kHalf) of 2 * kHalf neighbouring lanes: lane x gets the lanes' sum of part[x]. The
// two halves of the lanes exchange half of their parts, then each half continues by itself.
template <int kHalf>
__device__ float SumAcross(const float (&part)[2 * kHalf]) {
  const bool upper = (Lane() & kHalf) != 0;
  float kept[kHalf];
#pragma unroll
  for (int i = 0; i < kHalf; ++i) {
    const float give = upper ? part[i] : part[i + kHalf];
    const float rescale = upper ? part[i + kHalf] : part[i];
    kept[i] = rescale + FromLaneXor(give, kHalf);
  }
  if constexpr (kHalf == 1) {
    return kept[0];
  } else {
    return SumAcross<kHalf / 2>(kept);
  }
}

// WarpMax by one instruction, as the maximum of integers in the order of the numbers; may be NaN if
// a lane's is.
__device__ __forceinline__ float IntegerWarpMax(float x) {
  const auto ordered = [](int bits) { return bits ^ (bits >> 31 & 0x7fffffff); };
  return __int_as_float(ordered(__reduce_max_sync(kAllLanes, ordered(__float_as_int(x)))));
}

// The product q.k of this lane's key, without its exponent.
template <int kHeadDim, typename Part>
__device__ float DotProduct(const float (&q)[8], const Part (&keys)[Layout<kHeadDim>::kLoads]) {
  using L = Layout<kHeadDim>;
  float part[L::kLoads];
#pragma unroll
  for (int i = 0; i < L::kLoads; ++i) {
    const Float8 k = Widen(keys[i]);
    part[i] = q[0] * k.x[0];
#pragma unroll
    for (int j = 1; j < kVec8; ++j) part[i] = fmaf(q[j], k.x[j], part[i]);
  }
  return SumAcross<L::kLanes / 2>(part);
}

// Adds a half page's keys to `softmax`; returns the weight of this lane's value, with its exponent.
// A power of two more or less changes no other bit of a product.
template <int kHeadDim, typename Part>
__device__ float ScoresToProbs(const KeptSeqHead<kHeadDim>& kept,
                               const Part (&keys)[Layout<kHeadDim>::kLoads], const Gate& gate,
                               int valid, Softmax& softmax) {
  using L = Layout<kHeadDim>;
  const float scale = kLog2E * (1.0f / sqrtf(static_cast<float>(kHeadDim)));
  const float4* from = reinterpret_cast<const float4*>(kept.q + Lane() % L::kLanes * L::kDims);
  const float4 low = from[0], high = from[1];
  const float q[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
  const float decay = static_cast<float>(kept.base - gate.base) + (kept.local - gate.local);
  float product = DotProduct<kHeadDim>(q, keys);
  if constexpr (kHasExponents<Part>) product *= PowerOfTwo(gate.key_exponent);
  const float logit =
      LaneKey<kHeadDim>() < valid ? fmaf(product, scale, decay * kLog2E) : -INFINITY;
  const float max = fmaxf(softmax.max, IntegerWarpMax(logit));
  const float rescale = exp2f(softmax.max - max);
  const float weight = exp2f(logit - max);
  softmax.max = max;
  softmax.sum = fmaf(softmax.sum, rescale, weight);
#pragma unroll
  for (float& x : softmax.out) x *= rescale;
  return kHasExponents<Part> ? weight * PowerOfTwo(gate.value_exponent) : weight;
}

template <int kHeadDim, typename Part>
__device__ void AddValues(float weight, const Part (&values)[Layout<kHeadDim>::kLoads],
                          Softmax& softmax) {
  using L = Layout<kHeadDim>;
  float(&out)[8] = softmax.out;
#pragma unroll
  for (int i = 0; i < L::kLoads; ++i) {
    const float w = FromLane(weight, i, L::kLanes);
    const Float8 v = Widen(values[i]);
#pragma unroll
    for (int j = 0; j < kVec8; ++j) out[j] = fmaf(w, v.x[j], out[j]);
  }
}

// Space in which a warp adds up its lane groups' parts of a row.
template <int kHeadDim>
struct LaneGroups {
  alignas(16) float out[Layout<kHeadDim>::kGroups][kHeadDim];
};

// Each warp's part of a row: its sums and its maximum.
template <int kHeadDim, int kBlockWarps>
struct WarpParts {
  alignas(8) float out[kBlockWarps][kHeadDim];
  float max[kBlockWarps];
  float sum[kBlockWarps];

  // The calling warp's part, added up in its own `groups`; a barrier must follow.
  __device__ void Put(int warp, const Softmax& softmax, LaneGroups<kHeadDim>& groups) {
    using L = Layout<kHeadDim>;
    __syncwarp();
    float4* to =
        reinterpret_cast<float4*>(&groups.out[Lane() / L::kLanes][Lane() % L::kLanes * L::kDims]);
    to[0] = {softmax.out[0], softmax.out[1], softmax.out[2], softmax.out[3]};
    to[1] = {softmax.out[4], softmax.out[5], softmax.out[6], softmax.out[7]};
    const float warp_sum = WarpSum(softmax.sum);
    if (Lane() == 0) {
      max[warp] = softmax.max;
      sum[warp] = warp_sum;
    }
    __syncwarp();
#pragma unroll
    for (int t = Lane(); t < kHeadDim; t += kWarp) {
      float warp_out = 0;
#pragma unroll
      for (int g = 0; g < L::kGroups; ++g) warp_out += groups.out[g][t];
      out[warp][t] = warp_out;
    }
  }

  // The block's maximum, sum and out[t], warps in order. Warps without keys have the least maximum
  // and so no weight; one at least has keys.
  __device__ void Merge(int t, float& all_max, float& all_sum, float& all_out) const {
    all_max = max[0];
    all_sum = all_out = 0;
#pragma unroll
    for (int w = 1; w < kBlockWarps; ++w) all_max = fmaxf(all_max, max[w]);
#pragma unroll
    for (int w = 0; w < kBlockWarps; ++w) {
      const float weight = exp2f(max[w] - all_max);
      all_sum = fmaf(weight, sum[w], all_sum);
      all_out = fmaf(weight, out[w][t], all_out);
    }
  }
  // The block's maximum, sum and the lane's words of the output, as above.
  __device__ void Merge(float& all_max, float& all_sum,
                        float2 (&all_out)[LaneWords<kHeadDim>::kCount]) const {
    using W = LaneWords<kHeadDim>;
#pragma unroll
    for (int i = 0; i < W::kCount; ++i) {
      Merge(2 * W::At(i), all_max, all_sum, all_out[i].x);
      Merge(2 * W::At(i) + 1, all_max, all_sum, all_out[i].y);
    }
  }
};

template <int kHeadDim>
__device__ void StoreRow(const Decode& a, const KeptSeqHead<kHeadDim>& kept, float max, float sum,
                         const float2 (&out)[LaneWords<kHeadDim>::kCount]) {
  StoreRow(a.params, a.transform, kept.seq_head.row, kept.seq_head.head, max, sum, out,
           kept.Factors());
}

// A window's splits in kWarps merges: merge w adds up splits w, w + kWarps, ... in order, each with
// weight exp2(its maximum - the window's), from zero on by fmaf.
template <int kHeadDim>
struct PartialMerges {
  alignas(8) float out[kWarps][kHeadDim];
  float sum[kWarps];

  // Adds up the merges in order and stores the row. By all threads, after a barrier.
  __device__ void Store(const Decode& a, const KeptSeqHead<kHeadDim>& kept, float max) const {
    using W = LaneWords<kHeadDim>;
    if (Warp() > 0) return;
    float row_sum = 0;
    float2 row_out[W::kCount] = {};
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      row_sum += sum[w];
#pragma unroll
      for (int i = 0; i < W::kCount; ++i) {
        row_out[i].x += out[w][2 * W::At(i)];
        row_out[i].y += out[w][2 * W::At(i) + 1];
      }
    }
    StoreRow(a, kept, max, row_sum, row_out);
  }
};

// Counts a seq_head's pages; called with its first split.
__device__ inline void CountPages(const Decode& a, const SeqHead& seq_head) {
  using Count = unsigned long long;
  const int seq = seq_head.index / a.kv.shape.q_heads;
  if (a.params.blocks_total != nullptr) {
    atomicAdd(reinterpret_cast<Count*>(a.params.blocks_total + seq),
              static_cast<Count>(NumPages(seq_head)));
  }
  if (a.params.blocks_pruned != nullptr) {
    atomicAdd(reinterpret_cast<Count*>(a.params.blocks_pruned + seq),
              static_cast<Count>(seq_head.first_live));
  }
}

}  // namespace fox::cuda::decode
