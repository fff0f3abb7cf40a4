// What the products of decode rows have in common: y = x W^T + bias, where W is and where y goes.
// For small_batch_gemm.cu and cluster_gemm.cu only.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/core/check.h"
#include "kernels/cuda/linear/device_weight.h"

namespace fox::cuda {

struct GemmArguments {
  int rows;
  const __nv_bfloat16* weight;  // [out, in]; gated: [2 out, in]
  int out, in;
  const float* bias;  // [out] or null
  bool accumulate;    // y += ...; y is float32
  bool gated;         // y = act(gate) * value of W's halves
  Activation act;
  float* y_f32;  // one of the two is not null
  __nv_bfloat16* y_bf16;
  int64_t y_stride;
};

inline GemmArguments MakeGemmArguments(const LinearParams& params) {
  const DeviceWeight& weight = OnDevice(params.weight);
  const MatrixView& y = params.out;
  FOX_CHECK(weight.out() <= INT32_MAX && weight.in() <= INT32_MAX);
  const bool wide = y.dtype == DType::kF32;
  return {static_cast<int>(y.rows),
          static_cast<const __nv_bfloat16*>(weight.data()),
          static_cast<int>(y.cols),
          static_cast<int>(weight.in()),
          static_cast<const float*>(params.bias),
          params.accumulate,
          params.gate.has_value(),
          params.gate.value_or(Activation::kSilu),
          wide ? static_cast<float*>(y.data) : nullptr,
          wide ? nullptr : static_cast<__nv_bfloat16*>(y.data),
          y.row_stride};
}

}  // namespace fox::cuda
