// Parameters of linear layers: weights, the transform of input rows, the product.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "kernels/core/activation.h"
#include "kernels/core/matrix_view.h"

namespace fox {

// A linear layer's weight [out, in] in whatever form the backend multiplies fastest.
class PackedWeight {
 public:
  virtual ~PackedWeight() = default;
  int64_t out() const { return out_; }
  int64_t in() const { return in_; }
  size_t bytes() const { return bytes_; }

 protected:
  PackedWeight(int64_t out, int64_t in, size_t bytes) : out_(out), in_(in), bytes_(bytes) {}

 private:
  int64_t out_, in_;
  size_t bytes_;
};

// Prologue of a linear layer, applied to each input row.
struct InputTransform {
  enum class Kind : uint8_t {
    kNone,
    kRmsNorm,  // x / sqrt(mean(x^2) + eps) * weight; weight [cols] residual dtype
    kGatedAct  // act(x[:I]) * x[I:], I = cols / 2
  };
  Kind kind = Kind::kNone;
  const void* weight = nullptr;
  double eps = 0;
  // kRmsNorm, only where Ops::has_decode_family(), of decode rows: the norm as NormedRows takes it
  // apart, so the bits that `takes` would give.
  bool apart = false;
  Activation act = Activation::kSigmoid;
  // [rows, in] activation dtype, for backends that do not fuse; kNone: unused
  MatrixView scratch = {};
};

// Rows of the residual stream on their way through a norm, in two parts: rounded after the norm's
// weight, and sums of their squares. What is missing, 1 / sqrt(mean(x^2) + eps), is one factor a
// row, which the product over them applies to its sums.
struct NormedRows {
  static constexpr int64_t kSumCols = 128;  // columns of one sum
  static constexpr int64_t SumsOf(int64_t cols) { return (cols + kSumCols - 1) / kSumCols; }

  MatrixView rows = {};          // [rows, cols] activation dtype: x * weight
  float* sums = nullptr;         // [rows, SumsOf(cols)]
  const void* weight = nullptr;  // [cols] residual dtype
  double eps = 0;
};

// out = t(in) W^T + bias, or out += ...; t is `transform`, row by row.
struct LinearParams {
  MatrixView in;  // [rows, *] residual dtype or activation dtype
  InputTransform transform = {};
  const PackedWeight& weight;
  const void* bias = nullptr;  // [out] residual dtype, or null
  bool accumulate = false;
  // Where Ops::has_decode_family(): the rows of `in` are decode rows (batch_view.h), in any number;
  // else prefill rows, at least two. Elsewhere it says nothing.
  bool decodes = false;
  // Only where Ops::has_decode_family(). With it the product's halves become one: out [rows,
  // weight.out / 2] = act(y[:I]) * y[I:], the values of kGatedAct over y in the activation dtype.
  // Without bias and accumulate.
  std::optional<Activation> gated = {};
  // The following two only of decode rows where Ops::has_decode_family().
  // With `rows`: they stand for the norm of `in`, which then is not read; no transform.
  NormedRows takes = {};
  // With `rows`: what is left of `out` for the next norm; accumulate. Overlaps nothing that the
  // product reads.
  NormedRows leaves = {};
  MatrixView out;  // [rows, out] residual dtype or activation dtype
};

}  // namespace fox
