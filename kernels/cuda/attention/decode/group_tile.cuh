// How a warp processes a half page for up to eight query heads of its kv head: which lane holds
// what, the loads into registers, and the tensor core products. For groups.cu only.
//
// With r = lane / 4 and c = lane % 4 a lane has the logits of query r and of keys 8c .. 8c + 7 of
// the half page. Products: S[query, key] = Q K', then O'[dim, query] += V' P'. Keys and dims are
// assigned to rows and columns such that keys and values go from memory into registers unchanged,
// 16 bytes per lane, and the weights stay in the registers in which they are computed.
#pragma once

#include <cuda_runtime.h>

#include <cfloat>
#include <cmath>
#include <cstdint>

#include "kernels/cuda/attention/decode/splits.cuh"
#include "kernels/cuda/primitives/page_part.cuh"
#include "kernels/cuda/primitives/warp.cuh"
#include "kernels/cuda/ptx/fast_math.cuh"
#include "kernels/cuda/ptx/global_memory.cuh"
#include "kernels/cuda/ptx/mma_sm80.cuh"

namespace fox::cuda::decode {

template <int kHeadDim>
struct GroupLayout {
  static constexpr int kLaneKeys = 8;  // whose logits and values a lane has
  // Keys: keys[j][i] is dims 32 i + 8 c .. + 7 of key r / 2 * 8 + 2 j + r % 2.
  static constexpr int kKeyRows = 4, kKeyParts = kHeadDim / 32;
  // Values: values[k][i] is dims 64 i + 8 r .. + 7 of key 8 c + k.
  static constexpr int kValueParts = kHeadDim / 64;
  // Blocks on an SM that the registers must allow.
  static constexpr int kBlocks = kHeadDim == 128 ? 2 : 3;
};

// Each lane's query, and the place of its keys.
__device__ inline int LaneQuery() { return Lane() / 4; }
__device__ inline int LaneFirstKey() { return Lane() % 4 * 8; }

template <int kHeadDim, typename Part>
struct GroupTile {
  using L = GroupLayout<kHeadDim>;
  static constexpr int kRowBytes = kHeadDim * kElementBytes<Part>;
  Part keys[L::kKeyRows][L::kKeyParts];
  Part values[L::kLaneKeys][L::kValueParts];
};

// load(from, to) for each part of a lane's rows: row j is kStep * j after the lane's first, at
// most its `last`; memory past the valid keys is never read (it may be NaN).
template <int kStep, int kRowBytes, int kPartBytes, int kRows, int kParts, typename Part,
          typename Load>
__device__ __forceinline__ void ForRows(const char* first, int last, bool whole,
                                        Part (&rows)[kRows][kParts], const Load& load) {
  if (whole) {
#pragma unroll
    for (int j = 0; j < kRows; ++j) {
#pragma unroll
      for (int i = 0; i < kParts; ++i) {
        load(first + j * kStep * kRowBytes + i * kPartBytes, rows[j][i]);
      }
    }
  } else {
#pragma unroll
    for (int j = 0; j < kRows; ++j) {
      const char* row = first + min(j * kStep, last) * kRowBytes;
#pragma unroll
      for (int i = 0; i < kParts; ++i) load(row + i * kPartBytes, rows[j][i]);
    }
  }
}

template <int kRowBytes>
__device__ inline const char* HalfPageBegin(const void* pool, const HalfPage& half_page) {
  const int64_t row =
      static_cast<int64_t>(half_page.page) * kPageTokens + half_page.half * kHalfPageKeys;
  return static_cast<const char*>(pool) + row * kRowBytes;
}

template <int kHeadDim, typename Part, typename Load>
__device__ __forceinline__ void ForKeys(const Decode& a, const HalfPage& half_page, bool whole,
                                        GroupTile<kHeadDim, Part>& tile, const Load& load) {
  constexpr int kRowBytes = GroupTile<kHeadDim, Part>::kRowBytes, kBytes = sizeof(Part);
  const int key = LaneQuery() / 2 * 8 + LaneQuery() % 2;
  const char* first =
      HalfPageBegin<kRowBytes>(a.kv.keys, half_page) + key * kRowBytes + Lane() % 4 * kBytes;
  ForRows<2, kRowBytes, 4 * kBytes>(first, max(half_page.valid - 1, 0) - key, whole, tile.keys,
                                    load);
}

template <int kHeadDim, typename Part, typename Load>
__device__ __forceinline__ void ForValues(const Decode& a, const HalfPage& half_page, bool whole,
                                          GroupTile<kHeadDim, Part>& tile, const Load& load) {
  constexpr int kRowBytes = GroupTile<kHeadDim, Part>::kRowBytes, kBytes = sizeof(Part);
  const int key = LaneFirstKey();
  const char* first =
      HalfPageBegin<kRowBytes>(a.kv.values, half_page) + key * kRowBytes + LaneQuery() * kBytes;
  ForRows<1, kRowBytes, 8 * kBytes>(first, max(half_page.valid - 1, 0) - key, whole, tile.values,
                                    load);
}

template <int kHeadDim, typename Part>
__device__ __forceinline__ void LoadKeys(const Decode& a, const HalfPage& half_page,
                                         GroupTile<kHeadDim, Part>& tile) {
  ForKeys(a, half_page, half_page.valid == kHalfPageKeys, tile,
          [](const char* from, Part& to) { to = LoadOnce<Part>(from); });
}

template <int kHeadDim, typename Part>
__device__ __forceinline__ void LoadValues(const Decode& a, const HalfPage& half_page,
                                           GroupTile<kHeadDim, Part>& tile) {
  ForValues(a, half_page, half_page.valid == kHalfPageKeys, tile,
            [](const char* from, Part& to) { to = LoadOnce<Part>(from); });
}

// As LoadTileAgain in loads.cuh.
template <int kHeadDim, typename Part>
__device__ __forceinline__ void LoadAgain(const Decode& a, const HalfPage& half_page,
                                          GroupTile<kHeadDim, Part>& tile) {
  const auto load = [](const char* from, Part& to) {
    to = LoadCoherent(reinterpret_cast<const Part*>(from));
  };
  ForKeys(a, half_page, false, tile, load);
  ForValues(a, half_page, false, tile, load);
}

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

// A warp's copy of a seq_head's query heads in shared memory, as KeptSeqHead for one.
template <int kHeadDim>
struct KeptGroup {
  SeqHead seq_head;
  int heads;
  double base[8];
  float local[8];
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
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kHeadDim / 32; ++i) {
      const int at = i * kWarp + Lane();
      q[at / (kHeadDim / 8)][at % (kHeadDim / 8)] = row.q[i];
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
// lane's share. out[4 i + p]: dims 64 i + 8 r + 2 p of queries 2 c and 2 c + 1, then the next dim.
template <int kHeadDim>
struct GroupSoftmax {
  float max = -FLT_MAX;  // finite, so that a half page without keys changes nothing
  float sum = 0;
  float out[kHeadDim / 16][4] = {};
};

// A lane's weights as pairs of bf16, and the remainders of the float32: together 16 bits.
struct GroupWeights {
  uint32_t high[4], low[4];
};

// The product q.k of the lane's query and keys, without exponents.
template <int kHeadDim, typename Part>
__device__ __forceinline__ void QueryProducts(const KeptGroup<kHeadDim>& kept,
                                              const GroupTile<kHeadDim, Part>& tile,
                                              float (&product)[8]) {
  using L = GroupLayout<kHeadDim>;
#pragma unroll
  for (int j = 0; j < L::kKeyRows; ++j) {
    float sums[4] = {};
#pragma unroll
    for (int i = 0; i < L::kKeyParts; ++i) {
      const uint4 q = kept.q[LaneQuery()][i * 4 + Lane() % 4], k = WidenPart(tile.keys[j][i]);
      MultiplyAdd(sums, {q.x, 0, q.y, 0}, k.x, k.y);
      MultiplyAdd(sums, {q.z, 0, q.w, 0}, k.z, k.w);
    }
    product[2 * j] = sums[0];
    product[2 * j + 1] = sums[1];
  }
}

// Adds a half page's first `valid` keys to `softmax`; returns the weights of the lane's values,
// with their exponents.
template <int kHeadDim, typename Part>
__device__ __forceinline__ GroupWeights GroupScoresToProbs(const KeptGroup<kHeadDim>& kept,
                                                           const GroupTile<kHeadDim, Part>& tile,
                                                           const GroupGate& gate, int valid,
                                                           GroupSoftmax<kHeadDim>& softmax) {
  const float scale = kLog2E * (1.0f / sqrtf(static_cast<float>(kHeadDim)));
  const int r = LaneQuery(), first = LaneFirstKey();
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
  GroupWeights weights;
#pragma unroll
  for (int k = 0; k < 8; k += 2) {
    float x = exp2f(logit[k] - max), y = exp2f(logit[k + 1] - max);
    softmax.sum = __fadd_rn(__fadd_rn(softmax.sum, x), y);
    if constexpr (kHasExponents<Part>) {  // exponents past the valid keys may be anything
      x = first + k < valid ? x * PowerOf(gate.value_exponents, k) : 0;
      y = first + k + 1 < valid ? y * PowerOf(gate.value_exponents, k + 1) : 0;
    }
    const uint32_t high = PackBf16(x, y);
    weights.high[k / 2] = high;
    weights.low[k / 2] = PackBf16(__fsub_rn(x, Low(high)), __fsub_rn(y, High(high)));
  }
  const float even = FromLane(rescale, Lane() % 4 * 8), odd = FromLane(rescale, Lane() % 4 * 8 + 4);
#pragma unroll
  for (auto& out : softmax.out) {
    out[0] = __fmul_rn(out[0], even);
    out[1] = __fmul_rn(out[1], odd);
    out[2] = __fmul_rn(out[2], even);
    out[3] = __fmul_rn(out[3], odd);
  }
  return weights;
}

template <int kHeadDim, typename Part>
__device__ __forceinline__ void AddGroupValues(const GroupWeights& weights,
                                               const GroupTile<kHeadDim, Part>& tile,
                                               GroupSoftmax<kHeadDim>& softmax) {
  using L = GroupLayout<kHeadDim>;
  const auto word = [](const uint4& x, int p) {
    return p == 0 ? x.x : p == 1 ? x.y : p == 2 ? x.z : x.w;
  };
#pragma unroll
  for (int s = 0; s < 2; ++s) {
#pragma unroll
    for (int i = 0; i < L::kValueParts; ++i) {
      uint4 wide[4];  // of the lane's keys 4 s .. 4 s + 3
#pragma unroll
      for (int k = 0; k < 4; ++k) wide[k] = WidenPart(tile.values[4 * s + k][i]);
#pragma unroll
      for (int p = 0; p < 4; ++p) {
        uint32_t v[4];
#pragma unroll
        for (int k = 0; k < 4; ++k) v[k] = word(wide[k], p);
        const uint32_t dims[4] = {__byte_perm(v[0], v[1], 0x5410), __byte_perm(v[0], v[1], 0x7632),
                                  __byte_perm(v[2], v[3], 0x5410), __byte_perm(v[2], v[3], 0x7632)};
        float(&out)[4] = softmax.out[4 * i + p];
        MultiplyAdd(out, dims, weights.high[2 * s], weights.high[2 * s + 1]);
        MultiplyAdd(out, dims, weights.low[2 * s], weights.low[2 * s + 1]);
      }
    }
  }
}

}  // namespace fox::cuda::decode
