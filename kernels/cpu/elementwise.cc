// Row-wise operations of the CPU backend: embedding, norms, gates. Each row is computed by one
// thread in one order.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/core/check.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/isa/isa_kernels.h"
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

void GatedRow(const float* gate, const float* x, int64_t count, bool silu, float* out) {
  const IsaKernels& isa = SelectIsaKernels();
  (silu ? isa.silu_mul : isa.sigmoid_mul)(gate, x, count, out);
}

void GatedRow(const double* gate, const double* x, int64_t count, bool silu, double* out) {
  for (int64_t i = 0; i < count; ++i) {
    const double e = std::exp(-std::abs(gate[i]));
    const double sigmoid = (gate[i] < 0 ? e : 1.0) / (1.0 + e);
    out[i] = (silu ? gate[i] : 1.0) * sigmoid * x[i];
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

void CpuOps::RmsNorm(const MatrixView& in, const void* weight, double eps, const MatrixView& out,
                     Stream) {
  DispatchWide(in.dtype, [&](auto wide) {
    using T = decltype(wide);
    const T* w = static_cast<const T*>(weight);
    pool_.ForEach(in.rows, in.rows * in.cols > kParallelElements,
                  [&](int64_t r) { NormRow(RowOf<T>(in, r), w, in.cols, eps, RowOf<T>(out, r)); });
  });
}

void CpuOps::OutputGate(const MatrixView& o, int head_dim, const void* norm, double eps,
                        const MatrixView& gate, bool silu, Stream) {
  DispatchWide(o.dtype, [&](auto wide) {
    using T = decltype(wide);
    const T* weight = static_cast<const T*>(norm);
    pool_.ForEach(o.rows, o.rows * o.cols > kParallelElements, [&](int64_t r) {
      T* x = RowOf<T>(o, r);
      for (int64_t first = 0; weight != nullptr && first < o.cols; first += head_dim) {
        NormRow(x + first, weight + first, head_dim, eps, x + first);
      }
      if (gate.empty()) return;
      GatedRow(RowOf<T>(gate, r), x, o.cols, silu, x);
    });
  });
}

void CpuOps::GatedAct(const MatrixView& gate_up, bool silu, const MatrixView& out, Stream) {
  DispatchWide(out.dtype, [&](auto wide) {
    using T = decltype(wide);
    pool_.ForEach(out.rows, out.rows * out.cols > kParallelElements, [&](int64_t r) {
      const T* gate = RowOf<T>(gate_up, r);
      GatedRow(gate, gate + out.cols, out.cols, silu, RowOf<T>(out, r));
    });
  });
}

}  // namespace fox
