// The arithmetic of norms and gates, for all kernels that norm or gate: the same bits everywhere.
#pragma once

#include <cuda_bf16.h>

#include "kernels/core/activation.h"
#include "kernels/cuda/primitives/vec8.cuh"
#include "kernels/cuda/primitives/warp.cuh"
#include "kernels/cuda/ptx/fast_math.cuh"

namespace fox::cuda {

// The RMS norm's scale of a head's values, without the weights.
template <int kHeadDim>
__device__ __forceinline__ float NormScale(float sum_of_squares, float eps) {
  return rsqrtf(fmaf(sum_of_squares, 1.0f / kHeadDim, eps));
}

// The RMS norm's scale of a row of `cols` columns.
__device__ __forceinline__ float RowNormScale(float sum_of_squares, int cols, float eps) {
  return rsqrtf(__fadd_rn(__fdiv_rn(sum_of_squares, static_cast<float>(cols)), eps));
}

// The order of a row's sum of squares: four neighbours in a chain; 128 columns, four in a lane, as
// a tree of these chains, neighbours first; the row's sums of 128 from left to right.
__device__ __forceinline__ float SumOfSquares(float a, float b, float c, float d) {
  return fmaf(d, d, fmaf(c, c, fmaf(b, b, __fmul_rn(a, a))));
}
__device__ __forceinline__ float SumOf128(const float4& v) {
  return StridedSum<1>(SumOfSquares(v.x, v.y, v.z, v.w));
}

inline constexpr int kNormSumCols = 128;
__host__ __device__ constexpr int NormSums(int cols) {
  return (cols + kNormSumCols - 1) / kNormSumCols;
}

// The factor of a row's product: the scale of its deferred norm. Sixteen sums are loaded before the
// first is added, so that 2,048 columns take one trip to memory; the zeros behind the last change
// nothing.
__device__ __forceinline__ float DeferredScale(const float* sums, int cols, float eps) {
  constexpr int kBatch = 16;
  const int count = NormSums(cols);
  float sum = 0;
#pragma unroll 1
  for (int first = 0; first < count; first += kBatch) {
    float batch[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) batch[i] = first + i < count ? sums[first + i] : 0;
#pragma unroll
    for (int i = 0; i < kBatch; ++i) sum = __fadd_rn(sum, batch[i]);
  }
  return RowNormScale(sum, cols, eps);
}

// A warp stores 128 columns of a row for a deferred norm, four in a lane, zeros past the row's end.
__device__ __forceinline__ void DeferColumns(const float4& x, const float4& weight, bool there,
                                             __nv_bfloat16* row, float* sum_of_row) {
  const float sum = SumOf128(x);
  if (Lane() == 0) *sum_of_row = sum;
  if (!there) return;
  *reinterpret_cast<uint2*>(row) = {PackBf16(x.x * weight.x, x.y * weight.y),
                                    PackBf16(x.z * weight.z, x.w * weight.w)};
}

__device__ __forceinline__ float Gated(float x, float gate, Activation act) {
  const float sigmoid = Sigmoid(gate);
  return x * (act == Activation::kSilu ? gate * sigmoid : sigmoid);
}
__device__ __forceinline__ Float8 Gated(Float8 x, const Float8& gate, Activation act) {
#pragma unroll
  for (int i = 0; i < kVec8; ++i) x.x[i] = Gated(x.x[i], gate.x[i], act);
  return x;
}

// act(gate) * x of a product's two halves, rounded to bf16 first: the same bits as a product that
// stores bf16 and a gate that reads it.
__device__ __forceinline__ float GatedRounded(float x, float gate, Activation act) {
  return Gated(__bfloat162float(__float2bfloat16_rn(x)),
               __bfloat162float(__float2bfloat16_rn(gate)), act);
}

}  // namespace fox::cuda
