// Row-wise operations of the CPU backend: embedding, and what becomes of rows before and after a
// matrix product (norms, gates). Each row is computed by one thread in one order.
#include <algorithm>
#include <cstring>

#include "kernels/core/check.h"
#include "kernels/core/load_element.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/norm_and_gate.h"

namespace fox {
namespace {

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
  FOX_CHECK(table.rows > 0 && table.cols == out.cols && batch.num_rows <= out.rows);
  DispatchWide(out.dtype, [&](auto wide) {
    using T = decltype(wide);
    for (int64_t r = 0; r < batch.num_rows; ++r) {
      const int64_t id = std::clamp<int64_t>(batch.token_ids[r], 0, table.rows - 1);
      LoadElements(table, id, out.Row<T>(r));
    }
  });
}

void CpuOps::Embed(const BatchView& batch, const PackedWeight& table, const MatrixView& out,
                   Stream) {
  const auto& blocks = static_cast<const BlockWeight&>(table);
  FOX_CHECK(table.in() == out.cols && batch.num_rows <= out.rows && out.dtype == DType::kF32);
  for (int64_t r = 0; r < batch.num_rows; ++r) {
    const int64_t id = std::clamp<int64_t>(batch.token_ids[r], 0, table.out() - 1);
    blocks.Unpack(id, out.Row<float>(r));
  }
}

void CpuOps::GatherRows(const MatrixView& in, const int64_t* rows, const MatrixView& out, Stream) {
  FOX_CHECK(in.cols == out.cols && in.dtype == out.dtype);
  const size_t bytes = static_cast<size_t>(in.cols) * SizeOf(in.dtype);
  for (int64_t i = 0; i < out.rows; ++i) {
    std::memcpy(out.Rows(i, 1).data, in.Rows(rows[i], 1).data, bytes);
  }
}

void CpuOps::Linear(const LinearParams& params, Stream) {
  const MatrixView &in = params.in, &out = params.out;
  if (in.rows == 0) return;
  FOX_CHECK(out.rows == in.rows && params.decode_rows >= 0 && params.decode_rows <= in.rows);
  FOX_CHECK(!params.gate || (2 * out.cols == params.weight.out() && !params.accumulate));
  const auto scratch = [this, &in](int64_t cols, size_t offset) {
    return MatrixView{scratch_.as<std::byte>() + offset, in.dtype, in.rows, cols, cols};
  };
  const int64_t inner = params.gate ? params.weight.out() : 0;
  const size_t normed_bytes =
      params.norm ? static_cast<size_t>(in.rows * in.cols) * SizeOf(in.dtype) : 0;
  const size_t bytes = normed_bytes + static_cast<size_t>(in.rows * inner) * SizeOf(in.dtype);
  if (bytes > scratch_.bytes()) scratch_ = Allocate(bytes);
  const MatrixView x = params.norm ? scratch(in.cols, 0) : in;
  const MatrixView y = params.gate ? scratch(inner, normed_bytes) : out;
  DispatchWide(in.dtype, [&](auto wide) {
    using T = decltype(wide);
    const auto for_each_row = [&](int64_t cols, const auto& body) {
      pool_.ForEach(in.rows, in.rows * cols > kParallelElements, body);
    };
    if (const auto& norm = params.norm) {
      for_each_row(in.cols, [&](int64_t r) {
        NormRow(in.Row<T>(r), static_cast<const T*>(norm->weight), in.cols, norm->eps, x.Row<T>(r));
      });
    }
    if (const auto* blocks = dynamic_cast<const BlockWeight*>(&params.weight)) {
      block_gemm_.Multiply(x, *blocks, static_cast<const float*>(params.bias), params.accumulate,
                           y);
    } else {
      gemm_->Multiply(x, params.weight, params.bias, params.accumulate, y);
    }
    if (!params.gate) return;
    for_each_row(inner, [&](int64_t r) {
      GatedRow(y.Row<T>(r), y.Row<T>(r) + out.cols, out.cols, *params.gate, out.Row<T>(r));
    });
  });
}

}  // namespace fox
