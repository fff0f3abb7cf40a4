// Gemm: the matrix products of the CPU backend, out = in W^T. Two makers: oneDNN (fast), and a
// plain one in which no row depends on how many rows there are (float64, invariance tests, no
// oneDNN).
#pragma once

#include <memory>
#include <string>

#include "kernels/core/matrix_view.h"
#include "kernels/core/thread_pool.h"
#include "kernels/interface/ops.h"

namespace fox {

// One thread calls; work is spread over the pool, which must outlive the product.
class Gemm {
 public:
  virtual ~Gemm() = default;
  virtual std::string Name() const = 0;
  virtual std::unique_ptr<PackedWeight> Pack(const MatrixView& weight) = 0;
  // The contract of Ops::Linear.
  virtual void Multiply(const MatrixView& in, const PackedWeight& weight, const void* bias,
                        bool accumulate, const MatrixView& out) = 0;
};

// `weight_dtype`: f64 or f32; bf16 weights are rounded to bf16 and multiplied in f32.
std::unique_ptr<Gemm> MakePlainGemm(DType weight_dtype, ThreadPool& pool);

// `weight_dtype`: f32, or bf16 (inputs rounded to bf16, float32 sums) where OneDnnHasBf16().
std::unique_ptr<Gemm> MakeOneDnnGemm(DType weight_dtype, ThreadPool& pool);
bool OneDnnHasBf16();

}  // namespace fox
