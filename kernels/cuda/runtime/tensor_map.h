// Tensor maps: how the copy engine of Hopper GPUs (TMA) sees an array in device memory.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/interface/varlen_attention.h"

namespace fox::cuda {

// A matrix of bf16 [rows, cols], strides in elements, copied in boxes of box_rows x box_cols whose
// rows fill one line of the swizzle: 64 columns, or 32.
cudaError_t EncodeMatrixMap(void* data, int64_t rows, int64_t cols, int64_t row_stride,
                            int box_rows, int box_cols, CUtensorMap* map);

// Rows of whole lines of kMapLineBytes, in `halves` halves of `rows` rows, with coordinates (byte,
// row, half, line), in boxes of box_rows rows of all halves and box_lines lines, swizzled.
cudaError_t EncodeLinesMap(const void* data, int64_t rows, int halves, int64_t row_bytes,
                           int box_rows, int box_lines, CUtensorMap* map);
inline constexpr int kMapLineBytes = 128;

// A matrix of float32 [rows, cols], contiguous, in boxes of box_rows x 32 (128 bytes swizzled).
cudaError_t EncodeFloatMap(float* data, int64_t rows, int64_t cols, int box_rows, CUtensorMap* map);

// A view of bf16 with coordinates (column, token, head, batch row), in boxes of box_tokens tokens
// of one head and box_cols columns, 64 or 32. Strides are multiples of 8 elements.
cudaError_t EncodeVarlenMap(const VarlenView& view, int batch, int tokens, int heads, int head_dim,
                            int box_tokens, int box_cols, CUtensorMap* map);

}  // namespace fox::cuda
