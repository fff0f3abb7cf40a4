// Gated products of prefill rows (against float64 in linear_test.cc): they have the bits of an
// exact product followed by the gate; and a row's bits depend neither on the other rows nor on the
// tiles.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include "kernels/core/dtype.h"
#include "kernels/cuda/linear/gemm_kernels.h"
#include "kernels/cuda/linear/row_transforms.h"
#include "tests/kernels/cuda/linear/linear_calls.h"
#include "tests/kernels/cuda/test_matrix.h"

namespace fox::cuda::testing {
namespace {

// Inner width, columns, activation: tiles of outputs, rows and columns, whole and cut off; fewer
// chunks of columns than stages.
class PrefillGemmTest
    : public LinearTest,
      public ::testing::WithParamInterface<std::tuple<int64_t, int64_t, Activation>> {
 protected:
  void SetUp() override {
    if (!HasClusterGemm()) GTEST_SKIP() << "no code for sm_90a, or no such device";
  }

  cudaError_t Start(const LinearParams& params) override {
    return PrefillGemm(params.in, params, multiprocessors_, stream_);
  }

  // Outputs of `rows` rows from `first` on.
  std::vector<float> Outputs(int64_t first, int64_t rows) {
    TestMatrix y(DType::kBF16, rows, inner_, rows % 2 * 8);
    EXPECT_EQ(Run({.in = &x_, .weight = &weight_, .gate = act_}, y, first, rows), cudaSuccess);
    y.Download();
    return y.values();
  }

  // With tiles of either width, all of them one after the other among others.
  static constexpr int kMultiprocessors[] = {1, 7, 132, 10000};
  int multiprocessors_ = 132;
  const int64_t inner_ = std::get<0>(GetParam()), in_ = std::get<1>(GetParam());
  const Activation act_ = std::get<2>(GetParam());
  TestMatrix weight_{DType::kBF16, 2 * inner_, in_, 0};
  TestMatrix x_{DType::kBF16, 600, in_, 8};
};

// Small whole numbers, whose sums are exact in any order.
TEST_P(PrefillGemmTest, HasTheBitsOfProductAndGate) {
  constexpr int64_t kRows = 130;
  Uniform uniform(41);
  const auto fill = [&](TestMatrix& m) {
    for (int64_t r = 0; r < m.rows(); ++r) {
      for (int64_t c = 0; c < m.cols(); ++c) m.At(r, c) = std::round(uniform(1.5f));
    }
    m.Upload();
  };
  fill(weight_);
  fill(x_);
  TestMatrix product(DType::kBF16, kRows, 2 * inner_, 8), want(DType::kBF16, kRows, inner_, 8);
  for (int64_t r = 0; r < kRows; ++r) {
    for (int64_t c = 0; c < 2 * inner_; ++c) {
      float sum = 0;
      for (int64_t k = 0; k < in_; ++k) sum += x_.At(r, k) * weight_.At(c, k);
      product.At(r, c) = sum;
    }
  }
  product.Upload();
  ASSERT_EQ(GateRows(product.view(), act_, want.view(), stream_), cudaSuccess);
  want.Download();
  for (const int count : kMultiprocessors) {
    multiprocessors_ = count;
    for (const int64_t rows : {int64_t{3}, kRows}) {
      const std::vector<float> got = Outputs(0, rows);
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t c = 0; c < inner_; ++c) {
          ASSERT_EQ(got[static_cast<size_t>(r * inner_ + c)], want.At(r, c)) << r << " " << c;
        }
      }
    }
  }
}

TEST_P(PrefillGemmTest, BitsDependOnTheRowAlone) {
  Uniform uniform(43);
  weight_.FillUniform(uniform, 0.1f);
  x_.FillUniform(uniform, 1);
  const std::vector<float> want = Outputs(0, x_.rows());
  for (const int count : kMultiprocessors) {
    multiprocessors_ = count;
    for (const int64_t rows : {1, 2, 7, 63, 64, 65, 127, 128, 129, 255, 257, 300, 385, 600}) {
      const int64_t first = x_.rows() - rows;
      const std::vector<float> got = Outputs(first, rows);
      const auto differs = std::mismatch(got.begin(), got.end(), want.begin() + first * inner_);
      ASSERT_TRUE(differs.first == got.end())
          << "row " << (differs.first - got.begin()) / inner_ << " of " << rows << ", " << count
          << " multiprocessors";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Weights, PrefillGemmTest,
                         ::testing::Values(std::tuple{3584, 1536, Activation::kSilu},
                                           std::tuple{1000, 520, Activation::kSigmoid},
                                           std::tuple{136, 1032, Activation::kSigmoid},
                                           std::tuple{72, 2056, Activation::kSilu},
                                           std::tuple{264, 200, Activation::kSigmoid},
                                           std::tuple{8, 8, Activation::kSigmoid}),
                         [](const auto& c) { return std::to_string(std::get<0>(c.param)); });

}  // namespace
}  // namespace fox::cuda::testing
