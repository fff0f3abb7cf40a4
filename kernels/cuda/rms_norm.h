// RmsNormRows: root-mean-square normalisation of rows on an NVIDIA GPU, the GPU's side of
// Ops::RmsNorm. Rows are independent; sums are float32. The kernel is in rms_norm.cu.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/core/matrix_view.h"

namespace fox::cuda {

// out[r, c] = in[r, c] / sqrt(mean_c(in[r, c]^2) + eps) * weight[c]
//
// in, out: device memory, [rows, cols], f32 or bf16 each; they may be the same memory only when
// their types are. weight: device memory, float32 [cols]. Enqueues on `stream` and returns; gives
// the launch's error. REQUIRES: equal shapes, cols > 0.
cudaError_t RmsNormRows(const MatrixView& in, const float* weight, double eps,
                        const MatrixView& out, cudaStream_t stream);

}  // namespace fox::cuda
