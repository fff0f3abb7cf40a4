// The row transforms of linear layers as kernels of their own, for products that do not fuse them.
// Memory-bound, float32 inside. REQUIRES: rows 16-byte aligned, widths multiples of 8.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/linear_params.h"

namespace fox::cuda {

// out = transform(in); in f32 or bf16, out bf16 [rows, *]. kind is not kNone, or only converts; a
// norm is taken as a whole, whatever `apart` says.
// Enqueues on `stream`; gives the launch's error.
cudaError_t TransformRows(const MatrixView& in, const InputTransform& transform,
                          const MatrixView& out, cudaStream_t stream);

// What LinearParams::leaves would have left of `in`, float32: out.rows and out.sums, whose order of
// additions is the same. Enqueues on `stream`; gives the launch's error.
cudaError_t TakeApart(const MatrixView& in, const NormedRows& out, cudaStream_t stream);

}  // namespace fox::cuda
