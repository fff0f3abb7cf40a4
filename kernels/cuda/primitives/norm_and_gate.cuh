// The arithmetic of norms and gates, for all kernels that norm or gate: the same bits everywhere.
#pragma once

#include "kernels/core/activation.h"
#include "kernels/cuda/ptx/fast_math.cuh"

namespace fox::cuda {

// The RMS norm's scale of a head's values, without the weights.
template <int kHeadDim>
__device__ __forceinline__ float NormScale(float sum_of_squares, float eps) {
  return rsqrtf(fmaf(sum_of_squares, 1.0f / kHeadDim, eps));
}

// The same of a row of `cols` columns.
__device__ __forceinline__ float RowNormScale(float sum_of_squares, int cols, float eps) {
  return rsqrtf(__fadd_rn(__fdiv_rn(sum_of_squares, static_cast<float>(cols)), eps));
}

__device__ __forceinline__ float Gated(float x, float gate, Activation act) {
  const float sigmoid = Sigmoid(gate);
  return x * (act == Activation::kSilu ? gate * sigmoid : sigmoid);
}

}  // namespace fox::cuda
