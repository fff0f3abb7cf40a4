// Rows that are looked up: of the embedding table by token id, and of the residual stream for the
// rows that want logits. REQUIRES: rows 16-byte aligned, widths multiples of 8.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/batch_view.h"
#include "kernels/core/matrix_view.h"

namespace fox::cuda {

// Ops::Embed; table f32, f16 or bf16, out f32. Enqueue on `stream`; give the launch's error.
cudaError_t Embed(const BatchView& batch, const MatrixView& table, const MatrixView& out,
                  cudaStream_t stream);
// Ops::GatherRows; f32.
cudaError_t GatherRows(const MatrixView& in, const int64_t* rows, const MatrixView& out,
                       cudaStream_t stream);

}  // namespace fox::cuda
