// The activation functions of gates on the device.
#pragma once

#include "kernels/core/activation.h"
#include "kernels/cuda/ptx/fast_math.cuh"

namespace fox::cuda {

__device__ __forceinline__ float Activated(float x, Activation act) {
  const float sigmoid = Sigmoid(x);
  return act == Activation::kSilu ? x * sigmoid : sigmoid;
}

}  // namespace fox::cuda
