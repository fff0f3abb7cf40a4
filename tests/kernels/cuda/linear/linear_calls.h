// LinearTest: one LinearEngine, calls of it on a stream, and their results in float64, with the
// allowed error. For the tests of linear layers on the GPU.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <vector>

#include "kernels/core/e4m3.h"
#include "kernels/cuda/linear/device_weight.h"
#include "kernels/cuda/linear/linear.h"
#include "tests/kernels/cuda/test_matrix.h"

namespace fox::cuda::testing {

inline constexpr int64_t kAllRows = -1;

// A matrix's first rows in 8 bits, to which they are rounded in the matrix, too.
class Fp8Weight {
 public:
  Fp8Weight(TestMatrix* matrix, int64_t rounded) : in_(matrix->cols()) {
    std::vector<float> row(static_cast<size_t>(in_));
    std::vector<uint8_t> codes(row.size());
    for (int64_t r = 0; r < rounded; ++r) {
      for (int64_t c = 0; c < in_; ++c) row[static_cast<size_t>(c)] = matrix->At(r, c);
      const int exponent = EncodeE4M3(row.data(), in_, codes.data());
      for (int64_t c = 0; c < in_; ++c) {
        matrix->At(r, c) = static_cast<float>(E4M3Value(codes[static_cast<size_t>(c)], exponent));
      }
    }
    matrix->Upload();
    ThreadPool pool(1);
    const Fp8Rows host = EncodeFp8Rows(
        {const_cast<float*>(matrix->host().data()), DType::kF32, rounded, in_, in_}, pool);
    codes_ = DeviceArray<uint8_t>(host.codes);
    scales_ = DeviceArray<float>(host.scales);
    const auto stays = [](void*, size_t) {};  // this and the matrix own it
    weight_.emplace(matrix->rows(), in_, Buffer(matrix->view().Rows(rounded, 0).data, 0, stays),
                    DeviceFp8Rows{rounded, {codes_.data(), 0, stays}, {scales_.data(), 0, stays}});
  }
  const DeviceWeight& weight() const { return *weight_; }

 private:
  int64_t in_;
  DeviceArray<uint8_t> codes_;
  DeviceArray<float> scales_;
  std::optional<DeviceWeight> weight_;
};

// One call's operands; null: absent.
struct Call {
  const TestMatrix* in = nullptr;
  const TestMatrix* norm = nullptr;    // [1, in] f32
  const TestMatrix* weight = nullptr;  // [out, in] bf16
  const Fp8Weight* fp8 = nullptr;      // in place of it
  const TestMatrix* bias = nullptr;    // [1, out] f32
  std::optional<Activation> gate = {};
  bool accumulate = false;
  const TestMatrix* next_norm = nullptr;
  int64_t decode_rows = kAllRows;
  bool follows = false;  // the call before had `norm` for its next_norm and wrote `in`

  int64_t outputs() const { return weight->rows() / (gate ? 2 : 1); }
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
  LinearTest() {
    EXPECT_EQ(cudaStreamCreate(&stream_), cudaSuccess);
    Workload load;
    load.max_rows = 300;
    load.hidden_size = load.intermediate_size = 4096;
    EXPECT_EQ(engine_.Reserve(load), cudaSuccess);
  }
  ~LinearTest() override { cudaStreamDestroy(stream_); }

  // Runs the call for rows [first, first + rows); results go to rows of `out` from `out_first` on.
  // kAllRows: all rows.
  cudaError_t Run(const Call& call, const TestMatrix& out, int64_t first = 0,
                  int64_t rows = kAllRows, int64_t out_first = 0) {
    if (rows == kAllRows) rows = call.in->rows();
    const MatrixView weight = call.weight->view();
    const auto stays = [](void*, size_t) {};  // the matrix owns it
    const DeviceWeight packed(weight.rows, weight.cols, {weight.data, 0, stays});
    if (call.fp8 != nullptr) {
      EXPECT_EQ(engine_.ReserveWidened(call.fp8->weight()), cudaSuccess);
    }
    LinearParams params{.in = call.in->view().Rows(first, rows),
                        .weight = call.fp8 == nullptr ? packed : call.fp8->weight(),
                        .bias = call.bias == nullptr ? nullptr : call.bias->view().data,
                        .gate = call.gate,
                        .accumulate = call.accumulate,
                        .decode_rows = call.decode_rows == kAllRows ? rows : call.decode_rows,
                        .out = out.view().Rows(out_first, rows)};
    if (call.norm != nullptr) params.norm = NormBy(*call.norm);
    if (call.next_norm != nullptr) params.next_norm = NormBy(*call.next_norm);
    if (!call.follows) engine_.Forget(params.in.data);
    return Start(params);
  }

  // Run calls this: the engine, or a kernel of a test's choice.
  virtual cudaError_t Start(const LinearParams& params) { return engine_.Run(params, stream_); }

  // Runs `call` into a matrix of this type and gap and compares with float64.
  void Expect(const Call& call, DType dtype, int64_t gap);

  LinearEngine engine_;
  cudaStream_t stream_ = nullptr;
};

// A sum in float64, and its float32 value's error.
struct Product {
  double value, error;
};

// The error of y = sum t_k w_k, with S = sum |t_k w_k|:
// - sums of k products in float32, by tensor cores that cut off rather than round, 8 or 16 terms at
//   a time in one chain or several: at most (k / 8 + 16) cuts of 2^-23 S;
// - normed t_k are rounded to bf16, each off by up to 2^-8 of itself. Independent errors: by
//   Hoeffding's inequality their sum stays below 7 * 2^-8 * sqrt(sum (t_k w_k)^2) but for one case
//   in 2e10; and never exceeds 2^-8 S.
inline Product ProductOf(const std::vector<double>& t, const TestMatrix& weight, int64_t output,
                         bool normed) {
  double sum = 0, sum_abs = 0, sum_squares = 0;
  for (size_t k = 0; k < t.size(); ++k) {
    const double term = t[k] * weight.At(output, static_cast<int64_t>(k));
    sum += term;
    sum_abs += std::abs(term);
    sum_squares += term * term;
  }
  double error = (static_cast<double>(t.size()) / 8 + 16) * 0x1p-23 * sum_abs;
  if (normed) {
    error += std::min(0x1p-8 * sum_abs, 7 * 0x1p-8 * std::sqrt(sum_squares));
    error += NormError(static_cast<int64_t>(t.size())) * sum_abs;
  }
  return {sum, error};
}

// act(gate) * value. Both are rounded to bf16; an error changes the activation by at most 1.1 times
// itself, because its slope is below 1.1.
inline Product Gated(const Product& gate, const Product& value, Activation act) {
  const auto rounded = [](const Product& p) {
    return p.error * (1 + 0x1p-8) + 0x1p-8 * std::abs(p.value);
  };
  const double a = Activated(gate.value, act);
  const double error = rounded(value), act_error = 1.1 * rounded(gate) + 0x1p-18 * std::abs(a);
  return {a * value.value, act_error * (std::abs(value.value) + error) + std::abs(a) * error};
}

inline void LinearTest::Expect(const Call& call, DType dtype, int64_t gap) {
  const int64_t rows = call.in->rows(), in = call.weight->cols(), out = call.outputs();
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
  const bool normed = call.norm != nullptr;
  // The result is rounded to its type, and once before the last of bias and y's previous value is
  // added; kernels differ in which is the last.
  const double rounding = dtype == DType::kF32 ? 0x1p-23 : 0x1p-8;
  const std::vector<int64_t> columns = ColumnsToCheck(out, rows, in);
  for (int64_t r = 0; r < rows; ++r) {
    const std::vector<double> t = normed ? NormedRow(*call.in, r, *call.norm) : RowOf(*call.in, r);
    for (const int64_t c : columns) {
      Product p = ProductOf(t, *call.weight, c, normed);
      if (call.gate) p = Gated(p, ProductOf(t, *call.weight, out + c, normed), *call.gate);
      const double bias = call.bias != nullptr ? call.bias->At(0, c) : 0;
      const double previous = call.accumulate ? before[static_cast<size_t>(r * stride + c)] : 0;
      const double want = p.value + bias + previous;
      const double partial = std::max(std::abs(p.value + bias), std::abs(p.value + previous));
      const double tolerance =
          p.error * (1 + rounding) + rounding * (std::abs(want) + partial) + 1e-30;
      ASSERT_LE(std::abs(result.At(r, c) - want), tolerance)
          << "row " << r << " column " << c << " of " << rows << " x " << out << ", in " << in;
    }
  }
}

}  // namespace fox::cuda::testing
