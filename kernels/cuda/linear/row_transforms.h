// Operations on rows before and after products: lookups, and the norms and gates that products do
// not do themselves. Memory-bound, float32 inside; a row's result depends on that row alone. All
// enqueue on `stream` and give the launch's error. REQUIRES: rows 16-byte aligned, widths multiples
// of 8.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/interface/batch_view.h"
#include "kernels/interface/linear_params.h"

namespace fox::cuda {

class DeviceWeight;

// Rows x on their way through a norm whose scale, 1 / sqrt(mean(x^2) + eps), is deferred: the
// product of the rows multiplies its sums by it. So a product can store its outputs normed before
// it knows a whole row of them.
struct DeferredNorm {
  static constexpr int64_t kSumCols = 128;  // columns of one sum
  static constexpr int64_t SumsOf(int64_t cols) { return (cols + kSumCols - 1) / kSumCols; }

  MatrixView rows = {};   // [rows, cols] bf16: x * weight
  float* sums = nullptr;  // [rows, SumsOf(cols)] of x^2

  DeferredNorm From(int64_t row) const {
    if (rows.empty()) return {};
    return {rows.Rows(row, rows.rows - row),
            sums == nullptr ? nullptr : sums + row * SumsOf(rows.cols)};
  }
};

// in f32, out bf16.
cudaError_t NormRows(const MatrixView& in, const RmsNorm& norm, const MatrixView& out,
                     cudaStream_t stream);
cudaError_t DeferNorm(const MatrixView& in, const RmsNorm& norm, const DeferredNorm& out,
                      cudaStream_t stream);

// out = act(y[:I]) * y[I:] of rows y; bf16.
cudaError_t GateRows(const MatrixView& y, Activation act, const MatrixView& out,
                     cudaStream_t stream);

// f32 to bf16, without gaps between rows.
cudaError_t ConvertRows(const MatrixView& in, const MatrixView& out, cudaStream_t stream);

// All rows of the weight and its padding in bf16, exactly.
cudaError_t WidenWeight(const DeviceWeight& weight, void* out, cudaStream_t stream);

// Ops::Embed: rows of `table` (f32, f16 or bf16) by token id; out f32, of which no kernel in front
// of the step's BeginStep is still in need.
cudaError_t Embed(const BatchView& batch, const MatrixView& table, const MatrixView& out,
                  cudaStream_t stream);
// Ops::GatherRows; f32.
cudaError_t GatherRows(const MatrixView& in, const int64_t* rows, const MatrixView& out,
                       cudaStream_t stream);

}  // namespace fox::cuda
