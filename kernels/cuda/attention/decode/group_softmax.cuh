// The arithmetic of a half page for up to eight query heads of its kv head: gates, operands, the
// tensor core products and the softmax. For groups.cu only; group_tile.cuh says which lane has
// what.
#pragma once

#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cfloat>
#include <cmath>
#include <cstdint>

#include "kernels/cuda/attention/decode/group_tile.cuh"
#include "kernels/cuda/attention/decode/splits.cuh"
#include "kernels/cuda/primitives/page_part.cuh"
#include "kernels/cuda/primitives/warp.cuh"
#include "kernels/cuda/ptx/fast_math.cuh"
#include "kernels/cuda/ptx/global_memory.cuh"
#include "kernels/cuda/ptx/mma_sm80.cuh"

namespace fox::cuda::decode {

// Blocks on an SM that the registers must allow: without a tile in them one more.
template <int kHeadDim, typename Part>
constexpr int kGroupBlocks = (kHeadDim == 128 ? 2 : 3) + (kHasExponents<Part> ? 1 : 0);

// The gates of a half page for the lane's query: of its page, and of the lane's keys; in pages with
// exponents, also the exponents of the lane's keys and values, a byte each.
struct GroupGate {
  double base;
  float local[8];
  uint2 key_exponents, value_exponents;
};

__device__ __forceinline__ float PowerOf(const uint2& exponents, int k) {
  return PowerOfTwo(static_cast<int8_t>((k < 4 ? exponents.x : exponents.y) >> k % 4 * 8));
}

// The lane's query head among the `heads` that are computed together; past them, the last one.
__device__ inline int LaneHead(int heads) { return min(LaneQuery(), heads - 1); }

__device__ inline const float* LaneGates(const Decode& a, const SeqHead& seq_head,
                                         const HalfPage& half_page, int64_t& summary) {
  summary = Summary(a, half_page.page, seq_head) + LaneHead(NumHeads(a, seq_head.group_head));
  return a.kv.LogFOffsets<float>(summary) + half_page.half * kHalfPageKeys;
}

template <typename Part>
__device__ __forceinline__ GroupGate LoadGroupGate(const Decode& a, const SeqHead& seq_head,
                                                   const HalfPage& half_page) {
  int64_t summary;
  const float* local = LaneGates(a, seq_head, half_page, summary) + LaneFirstKey();
  GroupGate gate;
  gate.base = LoadCoherent(a.kv.page_cum_log_f + summary);
#pragma unroll
  for (int k = 0; k < 8; k += 4) {
    const float4 part = LoadCoherent(reinterpret_cast<const float4*>(local + k));
    gate.local[k] = part.x;
    gate.local[k + 1] = part.y;
    gate.local[k + 2] = part.z;
    gate.local[k + 3] = part.w;
  }
  if constexpr (kHasExponents<Part>) {
    const int token = half_page.half * kHalfPageKeys + LaneFirstKey();
    const auto load = [](const int8_t* from) {
      return LoadCoherent(reinterpret_cast<const uint2*>(from));
    };
    gate.key_exponents = load(a.kv.KeyExponent(half_page.page, token));
    gate.value_exponents = load(a.kv.ValueExponent(half_page.page, token));
  }
  return gate;
}

template <typename Part>
__device__ __forceinline__ void PrefetchGroupGates(const Decode& a, const SeqHead& seq_head,
                                                   const HalfPage& half_page) {
  int64_t summary;
  Prefetch(LaneGates(a, seq_head, half_page, summary));
  Prefetch(a.kv.page_cum_log_f + summary);
  if constexpr (kHasExponents<Part>) Prefetch(a.kv.KeyExponent(half_page.page, 0));
}

// How numbers enter the products. Pages in bf16 are multiplied as they lie. Codes become float16,
// which takes one instruction a pair, to bf16 it would take five; so the bf16 of queries and
// weights become float16 beside them, in units of powers of two (ScaleOf), because float16 has few
// of these. Sums are the same bits then, but for what weights below 2^-21 of the largest one lose,
// up to 2^-39 of that one.
template <typename Part>
struct GroupOperand;

template <>
struct GroupOperand<uint4> {
  static __device__ __forceinline__ const uint4& Keys(const uint4& part) { return part; }
  // The operand of dims 2 p and 2 p + 1 of four keys: the first two's, then the others'.
  static __device__ __forceinline__ void Values(const uint4 (&keys)[4], int p,
                                                uint32_t (&operand)[4]) {
#pragma unroll
    for (int k = 0; k < 4; k += 2) {
      const uint32_t first = Word(keys[k], p), second = Word(keys[k + 1], p);
      operand[k] = __byte_perm(first, second, 0x5410);
      operand[k + 1] = __byte_perm(first, second, 0x7632);
    }
  }
  static __device__ __forceinline__ uint32_t FromBf16(uint32_t pair, float /*inverse*/) {
    return pair;
  }
  static __device__ __forceinline__ void Multiply(float (&c)[4], const uint32_t (&a)[4],
                                                  uint32_t b0, uint32_t b1) {
    MultiplyAdd(c, a, b0, b1);
  }

 private:
  static __device__ __forceinline__ uint32_t Word(const uint4& x, int p) {
    return p == 0 ? x.x : p == 1 ? x.y : p == 2 ? x.z : x.w;
  }
};

template <>
struct GroupOperand<uint2> {
  static __device__ __forceinline__ uint4 Keys(const uint2& part) {
    const uint2 first = WidenToFloat16(part.x), second = WidenToFloat16(part.y);
    return {first.x, first.y, second.x, second.y};
  }
  static __device__ __forceinline__ void Values(const uint2 (&keys)[4], int p,
                                                uint32_t (&operand)[4]) {
#pragma unroll
    for (int k = 0; k < 4; k += 2) {
      const uint32_t first = p < 2 ? keys[k].x : keys[k].y;
      const uint32_t second = p < 2 ? keys[k + 1].x : keys[k + 1].y;
      const uint2 pairs = WidenToFloat16(__byte_perm(first, second, p % 2 == 0 ? 0x5140 : 0x7362));
      operand[k] = pairs.x;
      operand[k + 1] = pairs.y;
    }
  }
  // In units of 1 / `inverse`.
  static __device__ __forceinline__ uint32_t FromBf16(uint32_t pair, float inverse) {
    const __half2 scaled = __floats2half2_rn(Low(pair) * inverse, High(pair) * inverse);
    return reinterpret_cast<const uint32_t&>(scaled);
  }
  static __device__ __forceinline__ void Multiply(float (&c)[4], const uint32_t (&a)[4],
                                                  uint32_t b0, uint32_t b1) {
    MultiplyAddFloat16(c, a, b0, b1);
  }
};

// A unit for float16 numbers whose largest magnitude is x >= 0, and one over it: a power of two, so
// that x is from 2^14 to 2^15 units, and numbers from 2^-28 of x on keep eleven bits.
struct ScaleOf {
  float scale, inverse;

  __device__ __forceinline__ explicit ScaleOf(float x) {
    // Within these limits both are normal numbers.
    const int exponent = min(max(static_cast<int>(BitCast<uint32_t>(x) >> 23) - 14, 2), 252);
    scale = BitCast<float>(static_cast<uint32_t>(exponent) << 23);
    inverse = BitCast<float>(static_cast<uint32_t>(254 - exponent) << 23);
  }
};

// A warp's copy of a seq_head's query heads in shared memory, as KeptSeqHead for one. Beside codes
// q is float16, in units of its head's q_scale.
template <int kHeadDim, typename Part>
struct KeptGroup {
  SeqHead seq_head;
  int heads;
  double base[8];
  float local[8];
  float q_scale[8];
  uint4 q[8][kHeadDim / 8];

  struct Words {
    double base;
    float local;
    uint4 q[kHeadDim / 32];
  };
  // Loads AppendDecode's output for the seq_head; lanes past the last head load the last head's.
  static __device__ Words LoadRow(const Decode& a, const SeqHead& taken) {
    const int last = NumHeads(a, taken.group_head) - 1;
    const int64_t own = Summary(a, taken.own, taken) + min(Lane() % 8, last);
    const uint16_t* rows = static_cast<const uint16_t*>(a.params.q.data) +
                           taken.row * a.params.q.row_stride + taken.head * kHeadDim;
    Words row;
#pragma unroll
    for (int i = 0; i < kHeadDim / 32; ++i) {
      const int at = i * kWarp + Lane(), head = at / (kHeadDim / 8), part = at % (kHeadDim / 8);
      row.q[i] = LoadCoherent(
          reinterpret_cast<const uint4*>(rows + min(head, last) * kHeadDim + part * 8));
    }
    row.base = LoadCoherent(a.kv.page_cum_log_f + own);
    row.local = LoadCoherent(a.kv.LogFOffsets<float>(own) + (taken.length - 1) % kPageTokens);
    return row;
  }

  // Stores the rows of `seq_head`, by the warp.
  __device__ void Take(const Decode& a, const Words& row) {
    constexpr int kLanes = kHeadDim / 8;  // that have a head's row
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kHeadDim / 32; ++i) {
      const int at = i * kWarp + Lane();
      uint4 part = row.q[i];
      if constexpr (kHasExponents<Part>) {
        float largest = 0;
        for (const float x : Widen(part).x) largest = fmaxf(largest, fabsf(x));
        const ScaleOf unit(WarpMax<kLanes>(largest));
        for (uint32_t* pair : {&part.x, &part.y, &part.z, &part.w}) {
          *pair = GroupOperand<Part>::FromBf16(*pair, unit.inverse);
        }
        if (at % kLanes == 0) q_scale[at / kLanes] = unit.scale;
      }
      q[at / kLanes][at % kLanes] = part;
    }
    if (Lane() < 8) {
      base[Lane()] = row.base;
      local[Lane()] = row.local;
    }
    if (Lane() == 0) heads = NumHeads(a, seq_head.group_head);
    __syncwarp();
  }
  __device__ void Load(const Decode& a) { Take(a, LoadRow(a, seq_head)); }
};

// A running softmax, logits in log2 units: `max` and `sum` are of the lane's query, `sum` the
// lane's share. out[4 i + p]: dims 64 i + 8 r + 2 p of queries 2 c and 2 c + 1, then the next dim,
// in units of these queries' `scale`.
template <int kHeadDim>
struct GroupSoftmax {
  float max = -FLT_MAX;  // finite, so that a half page without keys changes nothing
  float sum = 0;
  float scale = 1;  // of the lane's query; with pages in bf16 one
  float out[kHeadDim / 16][4] = {};

  // Multiplies `out` by the `factor` of each query, which the query's lanes have.
  __device__ __forceinline__ void MultiplyOut(float factor) {
    const float even = FromLane(factor, Lane() % 4 * 8), odd = FromLane(factor, Lane() % 4 * 8 + 4);
#pragma unroll
    for (auto& of_dims : out) {
      of_dims[0] = __fmul_rn(of_dims[0], even);
      of_dims[1] = __fmul_rn(of_dims[1], odd);
      of_dims[2] = __fmul_rn(of_dims[2], even);
      of_dims[3] = __fmul_rn(of_dims[3], odd);
    }
  }
};

// A lane's weights as pairs of operands, and their remainders: together 16 bits.
struct GroupWeights {
  uint32_t high[4], low[4];
};

// The product q.k of the lane's query and keys, without exponents.
template <int kHeadDim, typename Part>
__device__ __forceinline__ void QueryProducts(const KeptGroup<kHeadDim, Part>& kept,
                                              const GroupTile<kHeadDim, Part>& tile,
                                              float (&product)[8]) {
  using L = GroupLayout<kHeadDim>;
  float sums[L::kKeyRows][4] = {};
#pragma unroll
  for (int i = 0; i < L::kKeyParts; ++i) {
    const uint4 q = kept.q[LaneQuery()][i * 4 + Lane() % 4];
#pragma unroll
    for (int j = 0; j < L::kKeyRows; ++j) {
      const uint4 k = GroupOperand<Part>::Keys(tile.Key(j, i));
      GroupOperand<Part>::Multiply(sums[j], {q.x, 0, q.y, 0}, k.x, k.y);
      GroupOperand<Part>::Multiply(sums[j], {q.z, 0, q.w, 0}, k.z, k.w);
    }
  }
#pragma unroll
  for (int j = 0; j < L::kKeyRows; ++j) {
    product[2 * j] = sums[j][0];
    product[2 * j + 1] = sums[j][1];
  }
}

// Adds a half page's first `valid` keys to `softmax`; returns the weights of the lane's values,
// with their exponents.
template <int kHeadDim, typename Part>
__device__ __forceinline__ GroupWeights GroupScoresToProbs(const KeptGroup<kHeadDim, Part>& kept,
                                                           const GroupTile<kHeadDim, Part>& tile,
                                                           const GroupGate& gate, int valid,
                                                           GroupSoftmax<kHeadDim>& softmax) {
  using Operand = GroupOperand<Part>;
  const int r = LaneQuery(), first = LaneFirstKey();
  float scale = kLog2E * (1.0f / sqrtf(static_cast<float>(kHeadDim)));
  if constexpr (kHasExponents<Part>) scale *= kept.q_scale[r];
  float logit[8];
  QueryProducts(kept, tile, logit);
  const float decay = static_cast<float>(kept.base[r] - gate.base), local = kept.local[r];
  float max = softmax.max;
#pragma unroll
  for (int k = 0; k < 8; ++k) {
    const float of_key = __fmul_rn(__fadd_rn(decay, __fsub_rn(local, gate.local[k])), kLog2E);
    if constexpr (kHasExponents<Part>) logit[k] *= PowerOf(gate.key_exponents, k);
    logit[k] = first + k < valid ? fmaf(logit[k], scale, of_key) : -INFINITY;
    max = fmaxf(max, logit[k]);
  }
  max = QuadMax(max);
  const float rescale = exp2f(softmax.max - max);
  softmax.max = max;
  softmax.sum = __fmul_rn(softmax.sum, rescale);
  float weight[8];
#pragma unroll
  for (int k = 0; k < 8; ++k) {
    weight[k] = exp2f(logit[k] - max);
    softmax.sum = __fadd_rn(softmax.sum, weight[k]);
  }
  float factor = rescale, inverse = 1;
  if constexpr (kHasExponents<Part>) {
    // `scale` becomes the unit of the largest weight so far, as only smaller weights lose bits.
    const float before = softmax.scale * rescale;
    float largest = before * 0x1p14f;
#pragma unroll
    for (int k = 0; k < 8; ++k) {  // exponents past the valid keys may be anything
      weight[k] = first + k < valid ? weight[k] * PowerOf(gate.value_exponents, k) : 0;
      largest = fmaxf(largest, weight[k]);
    }
    const ScaleOf unit(QuadMax(largest));
    softmax.scale = unit.scale;
    inverse = unit.inverse;
    factor = before * inverse;
  }
  GroupWeights weights;
#pragma unroll
  for (int k = 0; k < 8; k += 2) {
    const uint32_t high = PackBf16(weight[k], weight[k + 1]);
    const uint32_t low =
        PackBf16(__fsub_rn(weight[k], Low(high)), __fsub_rn(weight[k + 1], High(high)));
    weights.high[k / 2] = Operand::FromBf16(high, inverse);
    weights.low[k / 2] = Operand::FromBf16(low, inverse);
  }
  softmax.MultiplyOut(factor);
  return weights;
}

template <int kHeadDim, typename Part>
__device__ __forceinline__ void AddGroupValues(const GroupWeights& weights,
                                               const GroupTile<kHeadDim, Part>& tile,
                                               GroupSoftmax<kHeadDim>& softmax) {
  using L = GroupLayout<kHeadDim>;
  using Operand = GroupOperand<Part>;
#pragma unroll
  for (int s = 0; s < 2; ++s) {
#pragma unroll
    for (int i = 0; i < L::kValueParts; ++i) {
      const Part keys[4] = {tile.Value(4 * s, i), tile.Value(4 * s + 1, i),
                            tile.Value(4 * s + 2, i), tile.Value(4 * s + 3, i)};
#pragma unroll
      for (int p = 0; p < 4; ++p) {
        uint32_t dims[4];
        Operand::Values(keys, p, dims);
        float(&out)[4] = softmax.out[4 * i + p];
        Operand::Multiply(out, dims, weights.high[2 * s], weights.high[2 * s + 1]);
        Operand::Multiply(out, dims, weights.low[2 * s], weights.low[2 * s + 1]);
      }
    }
  }
}

}  // namespace fox::cuda::decode
