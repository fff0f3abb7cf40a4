// Products of few rows in clusters: against float64 for every way to split W's columns; that a
// row's bits do not depend on the batch; and the gated form against a product and a transform.
#include "kernels/cuda/linear/cluster_gemm.h"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include "kernels/cuda/linear/input_transform.h"
#include "tests/kernels/cuda/linear/linear_calls.h"
#include "tests/kernels/cuda/test_matrix.h"

namespace fox::cuda {
namespace {

using testing::Call;
using testing::LinearTest;
using testing::TestMatrix;
using testing::TransformCase;
using testing::Uniform;

// Weights whose columns are split among 8, 4, 2 and 1 blocks, tiles of outputs and columns cut off.
class ClusterGemmTest : public LinearTest,
                        public ::testing::WithParamInterface<std::tuple<int64_t, int64_t>> {
 protected:
  void SetUp() override {
    if (!HasClusterGemm()) GTEST_SKIP() << "no code for sm_90a, or no such device";
    Uniform uniform(31);
    weight_.FillUniform(uniform, 1);
    bias_.FillUniform(uniform, 20);
    x_.FillUniform(uniform, 1);
  }

  static constexpr int64_t kMostRows = 64;
  const int64_t out_ = std::get<0>(GetParam()), in_ = std::get<1>(GetParam());
  TestMatrix weight_{DType::kBF16, out_, in_, 0};
  TestMatrix bias_{DType::kF32, 1, out_, 0};
  TestMatrix x_{DType::kBF16, 3 * kMostRows + 1, in_, 8};
};

TEST_P(ClusterGemmTest, MatchesFloat64) {
  Uniform uniform(32);
  for (const int64_t rows : {5, 8, 16, 17, 40, 64, 130}) {
    TestMatrix x(DType::kBF16, rows, in_, 8);
    x.FillUniform(uniform, 1);
    Expect({.in = &x, .weight = &weight_}, DType::kBF16, 3);
    Expect({.in = &x, .weight = &weight_, .bias = &bias_}, DType::kBF16, (4 - out_ % 4) % 4);
    Expect({.in = &x, .weight = &weight_, .bias = &bias_, .accumulate = true}, DType::kF32,
           (4 - out_ % 4) % 4);
    Expect({.in = &x, .weight = &weight_, .accumulate = true}, DType::kF32, 1);
    if (HasFatalFailure()) return;
  }
}

// A row's bits are those that it has in a batch of 64, wherever it stands in a batch of 5 to 64, or
// of a vocabulary's projection up to 193.
// This also shows what wgmma_narrow.cuh assumes of the tensor cores.
TEST_P(ClusterGemmTest, BitsDoNotDependOnTheNumberOfRows) {
  const Call call{.in = &x_, .weight = &weight_, .bias = &bias_};
  std::vector<std::vector<float>> want;  // by row, each in a batch of 64
  for (int64_t first = 0; first < x_.rows(); first += kMostRows) {
    const int64_t begin = std::min(first, x_.rows() - kMostRows);
    TestMatrix y(DType::kF32, kMostRows, out_, 0);
    ASSERT_EQ(Run(call, y, begin, kMostRows), cudaSuccess);
    y.Download();
    for (int64_t r = first - begin; r < kMostRows; ++r) {
      want.emplace_back(y.host().begin() + r * out_, y.host().begin() + (r + 1) * out_);
    }
  }
  const auto expect = [&](int64_t first, int64_t rows) {
    TestMatrix y(DType::kF32, rows, out_, 0);
    ASSERT_EQ(Run(call, y, first, rows), cudaSuccess);
    y.Download();
    for (int64_t r = 0; r < rows; ++r) {
      const std::vector<float> got(y.host().begin() + r * out_, y.host().begin() + (r + 1) * out_);
      ASSERT_EQ(got, want[static_cast<size_t>(first + r)])
          << "row " << r << " of " << rows << " from " << first;
    }
  };
  for (int64_t rows = 5; rows <= kMostRows; ++rows) {
    expect(0, rows);
    expect(x_.rows() - rows, rows);
    if (HasFatalFailure()) return;
  }
  for (const int64_t rows : {65, 72, 96, 128, 129, 193}) {
    if (!ClusterGemmTakes(rows, out_)) continue;
    expect(x_.rows() - rows, rows);
    if (HasFatalFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(Weights, ClusterGemmTest,
                         ::testing::Values(std::tuple{1536, 1536}, std::tuple{1530, 3584},
                                           std::tuple{65, 40}, std::tuple{129, 520},
                                           std::tuple{2200, 1000}, std::tuple{6216, 1536},
                                           std::tuple{7168, 1528}, std::tuple{17001, 264}),
                         [](const auto& shape) {
                           return std::to_string(std::get<0>(shape.param)) + "x" +
                                  std::to_string(std::get<1>(shape.param));
                         });

// Halves of whole and of cut off tiles, split among 2 and 8 blocks as the ungated product is.
class ClusterGemmGatedTest
    : public LinearTest,
      public ::testing::WithParamInterface<std::tuple<int64_t, int64_t, Activation>> {};

TEST_P(ClusterGemmGatedTest, HasTheBitsOfProductAndTransform) {
  if (!HasClusterGemm()) GTEST_SKIP() << "no code for sm_90a, or no such device";
  const auto [inner, in, act] = GetParam();
  Uniform uniform(41);
  TestMatrix weight(DType::kBF16, 2 * inner, in, 0);
  weight.FillUniform(uniform, 0.1f);
  for (const int64_t rows : {5, 8, 13, 32, 64}) {
    TestMatrix x(DType::kBF16, rows, in, 8), product(DType::kBF16, rows, 2 * inner, 8);
    TestMatrix want(DType::kBF16, rows, inner, 8), got(DType::kBF16, rows, inner, 8);
    x.FillUniform(uniform, 1);
    ASSERT_EQ(Run({.in = &x, .weight = &weight}, product), cudaSuccess);
    ASSERT_EQ(TransformRows(product.view(), {.kind = InputTransform::Kind::kGatedAct, .act = act},
                            want.view(), stream_),
              cudaSuccess);
    ASSERT_EQ(Run({.in = &x, .weight = &weight, .gated = act}, got), cudaSuccess);
    want.Download();
    got.Download();
    ASSERT_EQ(got.host(), want.host()) << rows << " rows";
  }
}

INSTANTIATE_TEST_SUITE_P(Weights, ClusterGemmGatedTest,
                         ::testing::Values(std::tuple{3584, 1536, Activation::kSilu},
                                           std::tuple{1000, 520, Activation::kSigmoid},
                                           std::tuple{72, 1032, Activation::kSilu}),
                         [](const auto& c) { return std::to_string(std::get<0>(c.param)); });

// A product that leaves its rows half normed, as an MLP's second one does, and one that takes them.
class ClusterGemmNormTest : public LinearTest, public ::testing::WithParamInterface<int64_t> {};

TEST_P(ClusterGemmNormTest, LeftRowsStandForTheNorm) {
  if (!HasClusterGemm()) GTEST_SKIP() << "no code for sm_90a, or no such device";
  const int64_t hidden = GetParam(), inner = 520, out = 700;
  const int64_t sums_of_row = (hidden + NormedRows::kSumCols - 1) / NormedRows::kSumCols;
  Uniform uniform(51);
  TestMatrix first(DType::kBF16, hidden, inner, 0), second(DType::kBF16, out, hidden, 0);
  TestMatrix norm(DType::kF32, 1, hidden, 0), bias(DType::kF32, 1, out, 0);
  first.FillUniform(uniform, 1);
  second.FillUniform(uniform, 1);
  norm.FillUniform(uniform, 2);
  bias.FillUniform(uniform, 20);
  TestMatrix h(DType::kBF16, 64, inner, 8);
  h.FillUniform(uniform, 1);
  std::vector<float> row_of_many;
  for (const int64_t rows : {64, 40, 33, 16, 8, 5}) {
    TestMatrix x(DType::kF32, rows, hidden, 0), plain(DType::kF32, rows, hidden, 0);
    TestMatrix normed(DType::kBF16, rows, hidden, 8), sums(DType::kF32, rows, sums_of_row, 0);
    Uniform start(52);
    x.FillUniform(start, 30);
    Uniform again(52);
    plain.FillUniform(again, 30);
    const NormedRows left{.rows = normed.view(),
                          .sums = static_cast<float*>(sums.view().data),
                          .weight = norm.view().data,
                          .eps = TransformCase::kEps};
    Call call{.in = &h, .weight = &first, .accumulate = true};
    ASSERT_EQ(Run(call, plain, 0, rows), cudaSuccess);
    call.leaves = left;
    ASSERT_EQ(Run(call, x, 0, rows), cudaSuccess);
    plain.Download();
    x.Download();
    normed.Download();  // checks the gaps
    ASSERT_EQ(x.host(), plain.host());
    Expect({.in = &x,
            .transform = {.kind = InputTransform::Kind::kRmsNorm, .weight = &norm},
            .weight = &second,
            .bias = &bias,
            .takes = left},
           DType::kF32, 0);
    if (HasFatalFailure()) return;
    TestMatrix y(DType::kBF16, rows, out, 0);
    ASSERT_EQ(Run({.in = &x, .weight = &second, .takes = left}, y), cudaSuccess);
    y.Download();
    const std::vector<float> row(y.host().begin(), y.host().begin() + out);
    if (row_of_many.empty()) row_of_many = row;
    ASSERT_EQ(row, row_of_many) << rows << " rows";
  }
}

INSTANTIATE_TEST_SUITE_P(Hidden, ClusterGemmNormTest, ::testing::Values(1536, 200, 8),
                         [](const auto& hidden) { return std::to_string(hidden.param); });

}  // namespace
}  // namespace fox::cuda
