// Products of few rows in clusters: the same bits for every way to split W's columns and any number
// of rows; the gated form against a product and a gate; deferred norms. Against float64, and
// against the kernel for fewer rows, which has the same order of sums, they are in linear_test.cc.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
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

// Calls the kernel itself, without LinearEngine's choice.
class ClusterGemmCalls : public LinearTest {
 protected:
  void SetUp() override {
    if (!HasClusterGemm()) GTEST_SKIP() << "no code for sm_90a, or no such device";
  }

  cudaError_t Start(const LinearParams& params) override {
    const DeferredNorm x = params.norm ? normed_ : DeferredNorm{params.in};
    return ClusterGemm(x, params, next_, multiprocessors_, stream_);
  }

  // Outputs of `call` for `rows` rows from `first` on.
  std::vector<float> Outputs(const Call& call, int64_t first, int64_t rows) {
    TestMatrix y(DType::kF32, rows, call.weight->rows(), 0);
    EXPECT_EQ(Run(call, y, first, rows), cudaSuccess);
    y.Download();
    return y.host();
  }

  // Makes calls split W's columns among `splits` blocks: 1 (2 where gated, leaving, or of 65 rows
  // and more), 2, 4 or 8.
  void Split(int splits, int64_t outputs_of_block, int64_t out) {
    const int64_t tiles = (out + outputs_of_block - 1) / outputs_of_block;
    multiprocessors_ = splits == 1 ? 1 : static_cast<int>(splits * tiles);
  }

  static constexpr int kSplits[] = {1, 2, 4, 8};
  int multiprocessors_ = 132;
  DeferredNorm normed_, next_;  // of calls with `norm`; with `next_norm`
};

// Weights whose columns 132 multiprocessors split among 8, 4, 2 and 1 blocks, which may be more
// than fit at once; tiles of outputs and columns, and classes of columns, cut off or missing.
class ClusterGemmTest : public ClusterGemmCalls,
                        public ::testing::WithParamInterface<std::tuple<int64_t, int64_t>> {};

// A row has the same bits as in a batch of 64, at any place and beside any number of rows. This
// also shows what wgmma.cuh assumes of the tensor cores.
TEST_P(ClusterGemmTest, BitsDoNotDependOnTheNumberOfRows) {
  constexpr int64_t kBatch = 64, kPassRows = 128;  // a pass has two groups of 64
  const auto [out, in] = GetParam();
  Uniform uniform(31);
  const TestMatrix weight(DType::kBF16, out, in, 0, uniform, 1),
      bias(DType::kF32, 1, out, 0, uniform, 20), x(DType::kBF16, 2 * kPassRows, in, 8, uniform, 1);
  const Call call{.in = &x, .weight = &weight, .bias = &bias};
  std::vector<float> want;  // by row, each in a batch of 64
  for (int64_t first = 0; first < x.rows(); first += kBatch) {
    const std::vector<float> y = Outputs(call, first, kBatch);
    want.insert(want.end(), y.begin(), y.end());
  }
  const auto expect = [&, width = out](int64_t first, int64_t rows) {
    const std::vector<float> got = Outputs(call, first, rows);
    const auto differs = std::mismatch(got.begin(), got.end(), want.begin() + first * width);
    ASSERT_TRUE(differs.first == got.end())
        << "row " << (differs.first - got.begin()) / width << " of " << rows << " from " << first;
  };
  for (int64_t rows = 1; rows <= kPassRows; ++rows) {
    expect(0, rows);
    expect(x.rows() - rows, rows);
    if (HasFatalFailure()) return;
  }
  for (const int64_t rows : {129, 130, 193, 200, 256}) {
    expect(x.rows() - rows, rows);
    if (HasFatalFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(Weights, ClusterGemmTest,
                         ::testing::Values(std::tuple{1536, 1536}, std::tuple{1530, 3584},
                                           std::tuple{65, 40}, std::tuple{129, 520},
                                           std::tuple{2200, 1000}, std::tuple{6216, 1536},
                                           std::tuple{7168, 1528}, std::tuple{17001, 264}),
                         [](const auto& c) {
                           return std::to_string(std::get<0>(c.param)) + "x" +
                                  std::to_string(std::get<1>(c.param));
                         });

// Halves of whole and of cut off tiles.
class ClusterGemmGatedTest
    : public ClusterGemmCalls,
      public ::testing::WithParamInterface<std::tuple<int64_t, int64_t, Activation>> {};

TEST_P(ClusterGemmGatedTest, HasTheBitsOfProductAndGate) {
  const auto [inner, in, act] = GetParam();
  Uniform uniform(41);
  TestMatrix weight(DType::kBF16, 2 * inner, in, 0, uniform, 0.1f);
  for (const int64_t rows : {1, 5, 8, 13, 32, 64, 65, 128, 130}) {
    SCOPED_TRACE(::testing::Message() << rows << " rows");
    TestMatrix x(DType::kBF16, rows, in, 8, uniform, 1), product(DType::kBF16, rows, 2 * inner, 8);
    TestMatrix want(DType::kBF16, rows, inner, 8), got(DType::kBF16, rows, inner, 8);
    ASSERT_EQ(Run({.in = &x, .weight = &weight}, product), cudaSuccess);
    ASSERT_EQ(GateRows(product.view(), act, want.view(), stream_), cudaSuccess);
    want.Download();
    for (const int splits : kSplits) {
      SCOPED_TRACE(::testing::Message() << splits << " splits");
      Split(splits, 64, inner);
      ASSERT_EQ(Run({.in = &x, .weight = &weight, .gate = act}, got), cudaSuccess);
      got.Download();
      ASSERT_EQ(got.host(), want.host()) << rows << " rows, " << splits << " splits";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Weights, ClusterGemmGatedTest,
                         ::testing::Values(std::tuple{3584, 1536, Activation::kSilu},
                                           std::tuple{1000, 520, Activation::kSigmoid},
                                           std::tuple{72, 1032, Activation::kSilu}),
                         [](const auto& c) { return std::to_string(std::get<0>(c.param)); });

// A product that defers the next norm of its outputs, as an MLP's second one does, and a product of
// the rows so normed.
class ClusterGemmNormTest : public ClusterGemmCalls,
                            public ::testing::WithParamInterface<int64_t> {};

TEST_P(ClusterGemmNormTest, ADeferredNormIsTheNorm) {
  const int64_t hidden = GetParam(), inner = 520, out = 700;
  const int64_t sums_of_row = DeferredNorm::SumsOf(hidden);
  Uniform uniform(51);
  TestMatrix first(DType::kBF16, hidden, inner, 0, uniform, 1),
      second(DType::kBF16, out, hidden, 0, uniform, 1);
  TestMatrix norm(DType::kF32, 1, hidden, 0, uniform, 2), bias(DType::kF32, 1, out, 0, uniform, 20);
  TestMatrix h(DType::kBF16, 200, inner, 8, uniform, 1);
  std::vector<float> many;
  for (const int64_t rows : {200, 130, 128, 97, 65, 64, 40, 33, 16, 8, 5, 1}) {
    SCOPED_TRACE(rows);
    TestMatrix x(DType::kF32, rows, hidden, 0), plain(DType::kF32, rows, hidden, 0);
    TestMatrix left(DType::kBF16, rows, hidden, 8), left_sums(DType::kF32, rows, sums_of_row, 0);
    TestMatrix want(DType::kBF16, rows, hidden, 8), want_sums(DType::kF32, rows, sums_of_row, 0);
    const auto deferred = [](const TestMatrix& rows_of, const TestMatrix& sums) {
      return DeferredNorm{rows_of.view(), static_cast<float*>(sums.view().data)};
    };
    for (TestMatrix* m : {&x, &plain}) {
      Uniform start(52);
      m->FillUniform(start, 30);
    }
    next_ = normed_ = deferred(left, left_sums);
    Call call{.in = &h, .weight = &first, .accumulate = true};
    ASSERT_EQ(Run(call, plain, 0, rows), cudaSuccess);
    call.next_norm = &norm;
    ASSERT_EQ(Run(call, x, 0, rows), cudaSuccess);
    ASSERT_EQ(DeferNorm(x.view(), NormBy(norm), deferred(want, want_sums), stream_), cudaSuccess);
    for (TestMatrix* m : {&plain, &x, &left, &left_sums, &want, &want_sums}) m->Download();
    ASSERT_EQ(x.host(), plain.host());
    ASSERT_EQ(left.host(), want.host());
    ASSERT_EQ(left_sums.host(), want_sums.host());
    const Call next{.in = &x, .norm = &norm, .weight = &second, .bias = &bias};
    Expect(next, DType::kF32, 0);
    if (HasFatalFailure()) return;
    for (const int splits : kSplits) {
      Split(splits, 128, out);
      const std::vector<float> got = Outputs(next, 0, rows);
      if (many.empty()) many = got;
      ASSERT_TRUE(std::equal(got.begin(), got.end(), many.begin())) << splits << " splits";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Hidden, ClusterGemmNormTest, ::testing::Values(1536, 200, 8),
                         [](const auto& hidden) { return std::to_string(hidden.param); });

}  // namespace
}  // namespace fox::cuda::testing
