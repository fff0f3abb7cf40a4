// Row-wise operations of the CPU backend: embedding, and what becomes of a row before a matrix
// product (norms, gates). Each row is computed by one thread in one order.
#include <algorithm>
#include <cstring>

#include "kernels/core/check.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/gated_row.h"
#include "kernels/cpu/load_element.h"
#include "kernels/cpu/norm_row.h"

namespace fox {
namespace {

template <typename T>
T* RowOf(const MatrixView& m, int64_t row) {
  return static_cast<T*>(m.data) + row * m.row_stride;
}

template <typename Body>
void DispatchWide(DType dtype, const Body& body) {
  if (dtype == DType::kF64) {
    body(double{});
  } else {
    FOX_CHECK(dtype == DType::kF32);
    body(float{});
  }
}

}  // namespace

void CpuOps::Embed(const BatchView& batch, const MatrixView& table, const MatrixView& out, Stream) {
  DispatchWide(out.dtype, [&](auto wide) {
    using T = decltype(wide);
    for (int64_t r = 0; r < batch.num_rows; ++r) {
      const int64_t id = std::clamp<int64_t>(batch.token_ids[r], 0, table.rows - 1);
      LoadElements(table, id, RowOf<T>(out, r));
    }
  });
}

void CpuOps::GatherRows(const MatrixView& in, const int64_t* rows, const MatrixView& out, Stream) {
  const size_t bytes = static_cast<size_t>(in.cols) * SizeOf(in.dtype);
  for (int64_t i = 0; i < out.rows; ++i) {
    std::memcpy(out.Rows(i, 1).data, in.Rows(rows[i], 1).data, bytes);
  }
}

namespace {

// t(row) of a linear layer's input. The row is `cols` wide, the result transform.scratch.cols. A
// norm is never taken apart.
template <typename T>
void TransformRow(const InputTransform& t, const T* in, int64_t cols, T* out) {
  if (t.kind == InputTransform::Kind::kRmsNorm) {
    NormRow(in, static_cast<const T*>(t.weight), cols, t.eps, out);
  } else {
    GatedRow(in, in + cols / 2, cols / 2, t.act, out);
  }
}

}  // namespace

void CpuOps::Linear(const LinearParams& params, Stream) {
  const MatrixView& in = params.in;
  const InputTransform& transform = params.transform;
  if (in.rows == 0) return;
  const auto multiply = [&](const MatrixView& x) {
    gemm_->Multiply(x, params.weight, params.bias, params.accumulate, params.out);
  };
  if (transform.kind == InputTransform::Kind::kNone) return multiply(in);
  const MatrixView& scratch = transform.scratch;
  FOX_CHECK(scratch.rows == in.rows && scratch.cols == params.weight.in() &&
            scratch.dtype == in.dtype);
  DispatchWide(in.dtype, [&](auto wide) {
    using T = decltype(wide);
    pool_.ForEach(in.rows, in.rows * in.cols > kParallelElements, [&](int64_t r) {
      TransformRow(transform, RowOf<T>(in, r), in.cols, RowOf<T>(scratch, r));
    });
  });
  multiply(scratch);
}

}  // namespace fox
