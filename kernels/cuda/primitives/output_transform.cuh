// OutputTransform as attention kernels apply it to the rows that they store, and their sinks
// (attention_params.h).
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/core/check.h"
#include "kernels/cuda/primitives/norm_and_gate.cuh"
#include "kernels/cuda/ptx/fast_math.cuh"
#include "kernels/interface/attention_params.h"

namespace fox::cuda {

// Absent parts are null.
struct OutputTransformArguments {
  const float* norm;          // [q_heads * head_dim]
  const __nv_bfloat16* gate;  // [num_rows, q_heads * head_dim]
  int64_t gate_stride;
  float eps;
  Activation act;
  const float* sink;  // [q_heads]
  float2* row_sums;   // [num_rows, q_heads] StepSchedule::RowSums
  int q_heads;

  // Of a finished row, by one thread. `max` and `sum`: of log2 units.
  __device__ __forceinline__ void StoreRowSum(int64_t row, int head, float max, float sum,
                                              float norm_scale) const {
    if (row_sums == nullptr) return;
    row_sums[row * q_heads + head] = {kLn2 * (max + Log2(sum)), norm_scale};
  }
};

// `row_sums`: StepSchedule::RowSums.
inline OutputTransformArguments MakeOutputTransformArguments(const AttentionParams& params,
                                                             float* row_sums, int q_heads) {
  constexpr int64_t kAlign = 16;
  const OutputTransform& t = params.transform;
  FOX_CHECK(reinterpret_cast<uintptr_t>(t.norm) % kAlign == 0);
  if (!t.gate.empty()) {
    FOX_CHECK(t.gate.dtype == DType::kBF16 && t.gate.cols == params.out.cols);
    FOX_CHECK(reinterpret_cast<uintptr_t>(t.gate.data) % kAlign == 0);
    FOX_CHECK(t.gate.row_stride * static_cast<int64_t>(SizeOf(t.gate.dtype)) % kAlign == 0);
  }
  return {.norm = static_cast<const float*>(t.norm),
          .gate = static_cast<const __nv_bfloat16*>(t.gate.data),
          .gate_stride = t.gate.row_stride,
          .eps = static_cast<float>(t.eps),
          .act = t.act,
          .sink = params.sink,
          .row_sums = reinterpret_cast<float2*>(params.acp == AcpMode::kOff ? nullptr : row_sums),
          .q_heads = q_heads};
}

}  // namespace fox::cuda
