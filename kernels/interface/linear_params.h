// Parameters of linear layers: weights, the norm of the input rows, the product, its gate.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "kernels/core/activation.h"
#include "kernels/core/matrix_view.h"

namespace fox {

// A linear layer's weight [out, in] in the form that the backend multiplies fastest.
class PackedWeight {
 public:
  virtual ~PackedWeight() = default;
  int64_t out() const { return out_; }
  int64_t in() const { return in_; }
  size_t bytes() const { return bytes_; }

 protected:
  PackedWeight(int64_t out, int64_t in, size_t bytes) : out_(out), in_(in), bytes_(bytes) {}
  void set_bytes(size_t bytes) { bytes_ = bytes; }

 private:
  int64_t out_, in_;
  size_t bytes_;
};

// x / sqrt(mean(x^2) + eps) * weight, of each row.
struct RmsNorm {
  const void* weight = nullptr;  // [cols] residual dtype
  double eps = 0;
};

// y = norm(in) W^T + bias; out = y, or out += y, or with `gate` out = act(y[:I]) * y[I:].
struct LinearParams {
  MatrixView in;                     // [rows, weight.in] residual dtype, without norm activation
  std::optional<RmsNorm> norm = {};  // dtype
  const PackedWeight& weight;
  const void* bias = nullptr;  // [weight.out] residual dtype, or null
  // Without bias and accumulate; I = weight.out / 2.
  std::optional<Activation> gate = {};
  bool accumulate = false;
  // A hint, with `accumulate`, without `norm`: the next product of `out` applies this norm to it,
  // unless something else is written there before.
  std::optional<RmsNorm> next_norm = {};
  int64_t decode_rows = 0;  // the first rows of `in` are decode rows (batch_view.h); the others,
                            // none or at least two, prefill rows
  MatrixView out;           // [rows, weight.out or I] residual dtype or activation dtype

  // The product of these rows alone.
  LinearParams Rows(int64_t first, int64_t count) const {
    LinearParams part = *this;
    part.in = in.Rows(first, count);
    part.out = out.Rows(first, count);
    return part;
  }
};

}  // namespace fox
