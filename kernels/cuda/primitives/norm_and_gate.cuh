// The arithmetic of a head's norm and of gates, for all kernels that norm or gate: the same bits
// everywhere.
#pragma once

#include "kernels/core/activation.h"
#include "kernels/cuda/ptx/fast_math.cuh"

namespace fox::cuda {

// What the RMS norm of a head multiplies its values with, before its weights do.
template <int kHeadDim>
__device__ __forceinline__ float NormScale(float sum_of_squares, float eps) {
  return rsqrtf(fmaf(sum_of_squares, 1.0f / kHeadDim, eps));
}

__device__ __forceinline__ float Gated(float x, float gate, Activation act) {
  const float sigmoid = Sigmoid(gate);
  return x * (act == Activation::kSilu ? gate * sigmoid : sigmoid);
}

}  // namespace fox::cuda
