// LinearTest: one LinearEngine, calls of it on a stream, and what they give in float64, with the
// error that is allowed. For the tests of linear layers on the GPU.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "kernels/cuda/linear/device_weight.h"
#include "kernels/cuda/linear/linear.h"
#include "tests/kernels/cuda/test_matrix.h"

namespace fox::cuda::testing {

// One call's operands; null: absent.
struct Call {
  const TestMatrix* in = nullptr;
  TransformCase transform = {};
  const TestMatrix* weight = nullptr;  // [out, in] bf16
  const TestMatrix* bias = nullptr;    // [1, out] f32
  bool accumulate = false;
  std::optional<Activation> gated = {};
  NormedRows takes = {};  // with rows: the call uses these instead of the transform, which says
                          // what they are
  NormedRows leaves = {};
  bool decodes = true;
  bool apart = false;  // a norm that is
};

// About `budget` multiplications' worth of columns, the first and last ones among them.
inline std::vector<int64_t> ColumnsToCheck(int64_t out, int64_t rows, int64_t in) {
  constexpr int64_t kBudget = 4'000'000;
  const int64_t count = std::clamp<int64_t>(kBudget / (rows * in), 64, out);
  if (count >= out) {
    std::vector<int64_t> all(static_cast<size_t>(out));
    for (int64_t c = 0; c < out; ++c) all[static_cast<size_t>(c)] = c;
    return all;
  }
  std::vector<int64_t> some;
  for (int64_t c = 0; c < 20; ++c) some.insert(some.end(), {c, out - 1 - c});
  for (int64_t i = 0; i < count - 40; ++i) some.push_back(i * out / (count - 40));
  return some;
}

class LinearTest : public ::testing::Test {
 protected:
  LinearTest() { EXPECT_EQ(cudaStreamCreate(&stream_), cudaSuccess); }
  ~LinearTest() override { cudaStreamDestroy(stream_); }

  // Rows [first, first + rows) into those of `out` from `out_first` on. `rows` < 0: all of them.
  cudaError_t Run(const Call& call, const TestMatrix& out, int64_t first = 0, int64_t rows = -1,
                  int64_t out_first = 0) {
    if (rows < 0) rows = call.in->rows();
    const int64_t width = call.weight->cols();
    if (scratch_ == nullptr || scratch_->rows() < rows || scratch_->cols() < width) {
      scratch_ = std::make_unique<TestMatrix>(DType::kBF16, rows, width, 8);
    }
    InputTransform t = call.transform.params();
    t.apart = call.apart;
    t.scratch = scratch_->view().Rows(0, rows).Columns(0, width);
    if (!call.takes.rows.empty()) t = {};
    const MatrixView weight = call.weight->view();
    const auto stays = [](void*, size_t) {};  // the matrix owns it
    return Start({.in = call.in->view().Rows(first, rows),
                  .transform = t,
                  .weight = DeviceWeight(weight.rows, weight.cols, {weight.data, 0, stays}),
                  .bias = call.bias == nullptr ? nullptr : call.bias->view().data,
                  .accumulate = call.accumulate,
                  .decodes = call.decodes,
                  .gated = call.gated,
                  .takes = call.takes,
                  .leaves = call.leaves,
                  .out = out.view().Rows(out_first, rows)});
  }

  // What Run calls: the engine, or a kernel of a test's choice.
  virtual cudaError_t Start(const LinearParams& params) { return engine_.Run(params, stream_); }

  // Runs `call` into a matrix of this type and gap and compares with float64.
  void Expect(const Call& call, DType dtype, int64_t gap);

  LinearEngine engine_;

  cudaStream_t stream_ = nullptr;
  std::unique_ptr<TestMatrix> scratch_;
};

// The error of y = sum t_k w_k, with S = sum |t_k w_k|:
// - sums of k products in float32, by tensor cores that cut off rather than round, 8 or 16 terms at
//   a time in one chain or several: at most (k / 8 + 16) cuts of 2^-23 S;
// - the transformed t_k are rounded to bf16, each off by up to 2^-8 of itself. Independent errors:
//   by Hoeffding's inequality their sum stays below 7 * 2^-8 * sqrt(sum (t_k w_k)^2) but for one
//   case in 2e10; and never exceeds 2^-8 S;
// - the result is rounded to its type, and once before the bias where that is added later.
inline double Tolerance(const Call& call, double sum_abs, double sum_squares, double product,
                        double want, DType out) {
  const double k = static_cast<double>(call.weight->cols());
  double tolerance = (k / 8 + 16) * 0x1p-23 * sum_abs;
  if (call.transform.kind != InputTransform::Kind::kNone || call.in->view().dtype == DType::kF32) {
    tolerance += std::min(0x1p-8 * sum_abs, 7 * 0x1p-8 * std::sqrt(sum_squares));
    tolerance += TransformError(call.in->cols()) * sum_abs;
  }
  const double rounding = out == DType::kF32 ? 0x1p-23 : 0x1p-8;
  return tolerance * (1 + rounding) + rounding * (std::abs(want) + std::abs(product)) + 1e-30;
}

inline void LinearTest::Expect(const Call& call, DType dtype, int64_t gap) {
  const int64_t rows = call.in->rows(), in = call.weight->cols(), out = call.weight->rows();
  TestMatrix result(dtype, rows, out, gap);
  Uniform uniform(99);
  if (call.accumulate) result.FillUniform(uniform, 8);
  const std::vector<float> before = result.host();
  const int64_t stride = result.view().row_stride;
  ASSERT_EQ(Run(call, result), cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
  result.Download();
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < out; ++c) ASSERT_FALSE(std::isnan(result.At(r, c))) << r << " " << c;
  }
  const std::vector<int64_t> columns = ColumnsToCheck(out, rows, in);
  for (int64_t r = 0; r < rows; ++r) {
    const std::vector<double> t = TransformedRow(call.transform, *call.in, r);
    ASSERT_EQ(t.size(), static_cast<size_t>(in));
    for (const int64_t c : columns) {
      double product = 0, sum_abs = 0, sum_squares = 0;
      for (int64_t k = 0; k < in; ++k) {
        const double term = t[static_cast<size_t>(k)] * call.weight->At(c, k);
        product += term;
        sum_abs += std::abs(term);
        sum_squares += term * term;
      }
      double want = product;
      if (call.bias != nullptr) want += call.bias->At(0, c);
      if (call.accumulate) want += before[static_cast<size_t>(r * stride + c)];
      ASSERT_LE(std::abs(result.At(r, c) - want),
                Tolerance(call, sum_abs, sum_squares, product, want, dtype))
          << "row " << r << " column " << c << " of " << rows << " x " << out << ", in " << in;
    }
  }
}

}  // namespace fox::cuda::testing
