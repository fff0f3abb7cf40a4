// Row-wise operations of a step that are not products: embedding lookup, gathering rows, and the
// row transforms of linear layers as kernels of their own. Memory-bound, float32 inside.
// REQUIRES everywhere: rows 16-byte aligned, widths multiples of 8, head_dim of an output norm a
// power of two from 8 to 256.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/batch_view.h"
#include "kernels/linear_params.h"

namespace fox::cuda {

// Ops::Embed; table f32, f16 or bf16, out f32. Enqueue on `stream`; give the launch's error.
cudaError_t Embed(const BatchView& batch, const MatrixView& table, const MatrixView& out,
                  cudaStream_t stream);
// Ops::GatherRows; f32.
cudaError_t GatherRows(const MatrixView& in, const int64_t* rows, const MatrixView& out,
                       cudaStream_t stream);
// out = transform(in); in f32 or bf16, out bf16 [rows, *]. kind is not kNone, or only converts.
cudaError_t TransformRows(const MatrixView& in, const InputTransform& transform,
                          const MatrixView& out, cudaStream_t stream);

}  // namespace fox::cuda
