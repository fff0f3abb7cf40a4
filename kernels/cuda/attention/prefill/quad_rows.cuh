// Rows of outputs in the layout of tensor core products: four neighbouring lanes, a quad, share a
// row, and lane q has columns 8b + 2q and 8b + 2q + 1 of each block b of eight. For both prefill
// kernels.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/cuda/primitives/output_transform.cuh"
#include "kernels/cuda/primitives/vec8.cuh"
#include "kernels/cuda/primitives/warp.cuh"
#include "kernels/cuda/ptx/fast_math.cuh"
#include "kernels/cuda/ptx/global_memory.cuh"

namespace fox::cuda {

// The thread's columns of a row: 8b + 2q + i at 2b + i.
template <int kHeadDim>
using QuadRow = float[kHeadDim / 4];

// The order of the norm's sum of squares: of pairs; over the blocks and then over the quad as
// trees, neighbours first.
__device__ __forceinline__ float SumOfPair(float a, float b) { return fmaf(b, b, __fmul_rn(a, a)); }

template <int kHeadDim>
__device__ __forceinline__ float SumSquares(const QuadRow<kHeadDim>& x) {
  constexpr int kBlocks = kHeadDim / 8;
  float sums[kBlocks];
#pragma unroll
  for (int b = 0; b < kBlocks; ++b) sums[b] = SumOfPair(x[2 * b], x[2 * b + 1]);
#pragma unroll
  for (int width = 1; width < kBlocks; width *= 2) {
#pragma unroll
    for (int b = 0; b < kBlocks; b += 2 * width) sums[b] = __fadd_rn(sums[b], sums[b + width]);
  }
  return QuadSum(sums[0]);
}

// In the same order where a thread has four neighbouring columns, the row's threads following each
// other.
template <int kHeadDim>
__device__ __forceinline__ float SumSquares(const float4& x) {
  float low = SumOfPair(x.x, x.y), high = SumOfPair(x.z, x.w);
#pragma unroll
  for (int offset = 2; offset < kHeadDim / 4; offset *= 2) {
    low = __fadd_rn(low, FromLaneXor(low, offset));
    high = __fadd_rn(high, FromLaneXor(high, offset));
  }
  const float half = __fadd_rn(low, high);
  return __fadd_rn(half, FromLaneXor(half, 1));
}

// The output gate's values of a row and a head.
template <int kHeadDim>
__device__ __forceinline__ const __nv_bfloat16* GatesOf(const OutputTransformArguments& t,
                                                        int64_t row, int head) {
  return t.gate + row * t.gate_stride + head * kHeadDim;
}

// The output transform of rows `row` and `row` + 8 of a tile, in two steps, so that its operands
// are loaded while products run. A source without a transform never loads.
template <int kHeadDim>
class QuadTransform {
 public:
  // Rows past the tile's last row get the last row's gates.
  template <typename Work>
  __device__ __forceinline__ void Load(const OutputTransformArguments& t, const Work& work,
                                       int row) {
    const int quad_lane = Lane() % 4;
    const auto* norm = reinterpret_cast<const float2*>(t.norm + work.head * kHeadDim) + quad_lane;
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) norm_[b] = t.norm == nullptr ? float2{} : __ldg(norm + 4 * b);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const auto* gate =
          GatesOf<kHeadDim>(t, work.first_row + min(row + 8 * r, work.count - 1), work.head);
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        const int block = 4 * v + quad_lane;
        const bool there = t.gate != nullptr && (kBlocks % 4 == 0 || block < kBlocks);
        gate_[r][v] = there ? LoadOnce(gate + 8 * block) : uint4{};
      }
    }
  }

  // Transforms row `row` + 8r; gives the scale of its norm.
  __device__ __forceinline__ float Apply(const OutputTransformArguments& t, int r,
                                         QuadRow<kHeadDim>& x) const {
    float scale = 1;
    if (t.norm != nullptr) {
      scale = NormScale<kHeadDim>(SumSquares<kHeadDim>(x), t.eps);
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) {
        x[2 * b] = x[2 * b] * scale * norm_[b].x;
        x[2 * b + 1] = x[2 * b + 1] * scale * norm_[b].y;
      }
    }
    if (t.gate == nullptr) return scale;
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const uint4& own = gate_[r][v];
      const uint32_t words[4] = {own.x, own.y, own.z, own.w};
      const Float8 gates = Widen(QuadTranspose(words, Lane() % 4));
#pragma unroll
      for (int i = 0; i < 8 && 8 * v + i < 2 * kBlocks; ++i) {
        x[8 * v + i] = Gated(x[8 * v + i], gates.x[i], t.act);
      }
    }
    return scale;
  }

 private:
  static constexpr int kBlocks = kHeadDim / 8, kVectors = (kBlocks + 3) / 4;

  float2 norm_[kBlocks];
  uint4 gate_[2][kVectors];  // 8 columns of block 4v + q
};

// `real`: false past the tile's last row, which is not stored.
template <int kHeadDim>
__device__ __forceinline__ void StoreRow(const QuadRow<kHeadDim>& x, bool real, __nv_bfloat16* to) {
  constexpr int kBlocks = kHeadDim / 8;
  const int quad_lane = Lane() % 4;
#pragma unroll
  for (int b = 0; b < kBlocks; b += 4) {
    uint32_t words[4] = {};
#pragma unroll
    for (int j = 0; j < 4 && b + j < kBlocks; ++j) {
      words[j] = PackBf16(x[2 * (b + j)], x[2 * (b + j) + 1]);
    }
    const uint4 vector = QuadTranspose(words, quad_lane);
    const bool there = kBlocks % 4 == 0 || b + quad_lane < kBlocks;
    if (real && there) *reinterpret_cast<uint4*>(to + 8 * (b + quad_lane)) = vector;
  }
}

}  // namespace fox::cuda
