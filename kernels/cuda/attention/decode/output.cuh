// The end of decode attention: a warp merges the sink into a head's finished row, applies the
// output norm and gate and stores it. Invariant: the order of the norm's sum is the same in all
// kernels.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/attention/merged_row.cuh"
#include "kernels/cuda/primitives/output_transform.cuh"
#include "kernels/cuda/primitives/warp.cuh"
#include "kernels/cuda/ptx/fast_math.cuh"
#include "kernels/cuda/ptx/global_memory.cuh"
#include "kernels/interface/attention_params.h"

namespace fox::cuda::decode {

// The two bf16 of a word as float32; the low one is a single bf16, too.
__device__ inline float Low(uint32_t word) { return __uint_as_float(word << 16); }
__device__ inline float High(uint32_t word) { return __uint_as_float(word & 0xffff0000u); }

// A head's row in a warp: words of two dims, spread over the lanes; some words are held more than
// once.
template <int kHeadDim>
struct LaneWords {
  static constexpr int kWords = kHeadDim / 2;
  static constexpr int kCount = (kWords + kWarp - 1) / kWarp;

  __device__ static int At(int i) { return (i * kWarp + Lane()) % kWords; }
};

// The lane's words of the factors of a head's output, without the norm's scale: the norm's weights
// and the gate, where they exist; and the sink.
template <int kHeadDim>
struct OutputFactors {
  using W = LaneWords<kHeadDim>;
  float2 norm[W::kCount] = {};
  uint32_t gate[W::kCount] = {};
  float sink = 0;

  __device__ void Load(const OutputTransformArguments& t, int64_t row, int head) {
    const int first = head * kHeadDim;
    const auto* gates = reinterpret_cast<const uint32_t*>(t.gate + row * t.gate_stride + first);
    const auto* norms = reinterpret_cast<const float2*>(t.norm + first);
#pragma unroll
    for (int i = 0; i < W::kCount; ++i) {
      if (t.gate != nullptr) gate[i] = LoadCoherent(gates + W::At(i));
      if (t.norm != nullptr) norm[i] = LoadCoherent(norms + W::At(i));
    }
    if (t.sink != nullptr) sink = LoadCoherent(t.sink + head);
  }
  // norm * act(gate), ones where there is none.
  __device__ float2 Product(const OutputTransformArguments& t, int i) const {
    const float2 factor = t.norm != nullptr ? norm[i] : float2{1, 1};
    if (t.gate == nullptr) return factor;
    return {Gated(factor.x, Low(gate[i]), t.act), Gated(factor.y, High(gate[i]), t.act)};
  }
};

// Prefetches the norm's weights and the sinks of heads [head, head + count) into the L2, by a warp.
// They are constant, so this may come before the wait.
template <int kHeadDim>
__device__ void PrefetchOutputConstants(const OutputTransformArguments& t, int head,
                                        int count = 1) {
  constexpr int kLineFloats = 32;
  if (t.sink != nullptr && Lane() < count) Prefetch(t.sink + head + Lane());
  if (t.norm == nullptr || Lane() * kLineFloats >= count * kHeadDim) return;
  Prefetch(t.norm + head * kHeadDim + Lane() * kLineFloats);
}

// Stores a head's row from the softmax's maximum, its sum and the lane's words of the output before
// the division by the sum. By a warp.
template <int kHeadDim>
__device__ void StoreRow(const AttentionParams& params, const OutputTransformArguments& t,
                         int64_t row, int head, float max, float sum,
                         const float2 (&out)[LaneWords<kHeadDim>::kCount],
                         const OutputFactors<kHeadDim>& factors) {
  using W = LaneWords<kHeadDim>;
  MergedRow sums{max, sum, 1, 0};
  if (t.sink != nullptr) sums.MergeSink(factors.sink, 0);  // logits are relative to the row's c
  float2 x[W::kCount];
  float square = 0, scale = 1;
#pragma unroll
  for (int i = 0; i < W::kCount; ++i) {
    x[i] = {__fdividef(out[i].x * sums.of_sums, sums.sum),
            __fdividef(out[i].y * sums.of_sums, sums.sum)};
    square = fmaf(x[i].y, x[i].y, fmaf(x[i].x, x[i].x, square));
  }
  if (t.norm != nullptr) {
    // Words that are held more than once do not change the mean.
    scale = NormScale<2 * W::kCount * kWarp>(WarpSum(square), t.eps);
  }
  auto* to = reinterpret_cast<uint32_t*>(static_cast<__nv_bfloat16*>(params.out.data) +
                                         row * params.out.row_stride + head * kHeadDim);
#pragma unroll
  for (int i = 0; i < W::kCount; ++i) {
    const float2 factor = factors.Product(t, i);
    to[W::At(i)] = PackBf16(x[i].x * scale * factor.x, x[i].y * scale * factor.y);
  }
  if (Lane() != 0) return;
  t.StoreRowSum(row, head, sums.max, sums.sum, scale);
  if (params.lse.data != nullptr) {
    static_cast<float*>(params.lse.data)[row * params.lse.row_stride + head] =
        __fmul_rn(__fadd_rn(sums.max, log2f(sums.sum)), kLn2);
  }
}

}  // namespace fox::cuda::decode
