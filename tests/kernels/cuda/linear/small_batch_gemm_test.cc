// The kernel of few rows against float64: norms, wide rows, columns that no tensor core product
// ends with, gates behind the product; 8 bits against bf16; a row's bits among others; and the
// number of rows that it takes. linear_test.cc compares its bits with cluster_gemm.cu's.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/cuda/linear/gemm_kernels.h"
#include "kernels/cuda/linear/row_transforms.h"
#include "tests/kernels/cuda/linear/linear_calls.h"
#include "tests/kernels/cuda/test_matrix.h"

namespace fox::cuda::testing {
namespace {

// Calls the kernel itself, without LinearEngine's choice. The numbers of columns cut off chunks,
// tiles and passes of a norm.
class SmallBatchGemmTest : public LinearTest, public ::testing::WithParamInterface<int64_t> {
 protected:
  cudaError_t Start(const LinearParams& params) override {
    return SmallBatchGemm(params, limits_, stream_);
  }

  static DeviceLimits LimitsOfDevice() {
    DeviceLimits limits;
    EXPECT_EQ(cudaDeviceGetAttribute(&limits.multiprocessors, cudaDevAttrMultiProcessorCount, 0),
              cudaSuccess);
    EXPECT_EQ(cudaDeviceGetAttribute(&limits.block_shared_bytes,
                                     cudaDevAttrMaxSharedMemoryPerBlockOptin, 0),
              cudaSuccess);
    limits.overlaps = HasClusterGemm();
    return limits;
  }

  DeviceLimits limits_ = LimitsOfDevice();
  const int64_t in_ = GetParam(), most_rows_ = SmallBatchRows(in_, limits_);
  Uniform uniform_{static_cast<uint64_t>(in_)};
};

TEST_P(SmallBatchGemmTest, MatchesFloat64) {
  TestMatrix norm(DType::kF32, 1, in_, 0, uniform_, 2);
  for (const int64_t out : {1, 140, 300, 2200}) {
    TestMatrix weight(DType::kBF16, out, in_, 0, uniform_, 1);
    TestMatrix bias(DType::kF32, 1, out, 0, uniform_, 20);
    for (int64_t rows = 1; rows <= most_rows_; ++rows) {
      TestMatrix x(DType::kBF16, rows, in_, 8, uniform_, 1);
      TestMatrix residual(DType::kF32, rows, in_, 4, uniform_, 30);
      Call normed{.in = &residual, .norm = &norm, .weight = &weight, .bias = &bias};
      Expect({.in = &x, .weight = &weight}, DType::kBF16, 1);
      Expect({.in = &x, .weight = &weight, .bias = &bias, .accumulate = true}, DType::kF32, 3);
      Expect(normed, DType::kF32, 0);
      normed.accumulate = true;
      Expect(normed, DType::kF32, 5);
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(SmallBatchGemmTest, GatedHasTheBitsOfProductAndGate) {
  for (const int64_t inner : {8, 136, 2200}) {
    TestMatrix weight(DType::kBF16, 2 * inner, in_, 0, uniform_, 0.1f),
        norm(DType::kF32, 1, in_, 0, uniform_, 2);
    for (int64_t rows = 1; rows <= most_rows_; ++rows) {
      SCOPED_TRACE(::testing::Message() << inner << " outputs of " << rows << " rows");
      TestMatrix x(DType::kBF16, rows, in_, 8, uniform_, 1),
          residual(DType::kF32, rows, in_, 4, uniform_, 30);
      TestMatrix product(DType::kBF16, rows, 2 * inner, 8);
      TestMatrix want(DType::kBF16, rows, inner, 8), got(DType::kBF16, rows, inner, 8);
      for (Call call : {Call{.in = &x, .weight = &weight},
                        Call{.in = &residual, .norm = &norm, .weight = &weight}}) {
        SCOPED_TRACE(::testing::Message() << (call.norm == nullptr ? "without norm" : "with norm"));
        const Activation act = call.norm == nullptr ? Activation::kSigmoid : Activation::kSilu;
        ASSERT_EQ(Run(call, product), cudaSuccess);
        ASSERT_EQ(GateRows(product.view(), act, want.view(), stream_), cudaSuccess);
        call.gate = act;
        ASSERT_EQ(Run(call, got), cudaSuccess);
        want.Download();
        got.Download();
        ASSERT_EQ(got.host(), want.host()) << inner << " outputs of " << rows << " rows";
      }
    }
  }
}

// Blocks of each number of groups, of more than one set, and some whose last ones end early; and
// the last rows of W in bf16.
TEST_P(SmallBatchGemmTest, EightBitsHaveTheBitsOfTheSameInBf16) {
  limits_.multiprocessors = 3;
  TestMatrix norm(DType::kF32, 1, in_, 0, uniform_, 2);
  for (const int64_t out : {24, 70, 130, 190, 520}) {
    for (const bool gated : {false, true}) {
      TestMatrix matrix(DType::kBF16, out, in_, 0, uniform_, 1);
      const Fp8Weight fp8(&matrix, gated ? out : out - out / 4);
      for (int64_t rows = 1; rows <= most_rows_; ++rows) {
        SCOPED_TRACE(::testing::Message()
                     << out << " outputs of " << rows << " rows, " << (gated ? "gated" : "plain"));
        TestMatrix x(DType::kBF16, rows, in_, 8, uniform_, 1),
            residual(DType::kF32, rows, in_, 4, uniform_, 30);
        for (Call call : {Call{.in = &x, .weight = &matrix},
                          Call{.in = &residual, .norm = &norm, .weight = &matrix}}) {
          SCOPED_TRACE(::testing::Message()
                       << (call.norm == nullptr ? "without norm" : "with norm"));
          if (gated) call.gate = Activation::kSilu;
          const DType dtype = gated ? DType::kBF16 : DType::kF32;
          TestMatrix want(dtype, rows, gated ? out / 2 : out, 8);
          TestMatrix got(dtype, rows, gated ? out / 2 : out, 8);
          ASSERT_EQ(Run(call, want), cudaSuccess);
          call.fp8 = &fp8;
          ASSERT_EQ(Run(call, got), cudaSuccess);
          want.Download();
          got.Download();
          ASSERT_EQ(got.host(), want.host()) << out << " outputs of " << rows << " rows, " << gated;
        }
      }
    }
  }
}

// Alone, and among others.
TEST_P(SmallBatchGemmTest, BitsDependOnTheRowAlone) {
  constexpr int64_t kOut = 300;
  TestMatrix weight(DType::kBF16, kOut, in_, 0, uniform_, 1),
      norm(DType::kF32, 1, in_, 0, uniform_, 2);
  TestMatrix x(DType::kF32, most_rows_, in_, 4, uniform_, 30);
  const Call call{.in = &x, .norm = &norm, .weight = &weight};
  const auto outputs = [&](int64_t first, int64_t rows) {
    TestMatrix y(DType::kF32, rows, kOut, 0);
    EXPECT_EQ(Run(call, y, first, rows), cudaSuccess);
    y.Download();
    return y.host();
  };
  std::vector<float> alone;
  for (int64_t r = 0; r < most_rows_; ++r) {
    const std::vector<float> y = outputs(r, 1);
    alone.insert(alone.end(), y.begin(), y.end());
  }
  for (int64_t rows = 2; rows <= most_rows_; ++rows) {
    const std::vector<float> y = outputs(most_rows_ - rows, rows);
    ASSERT_TRUE(std::equal(y.begin(), y.end(), alone.end() - rows * kOut)) << rows;
  }
}

INSTANTIATE_TEST_SUITE_P(In, SmallBatchGemmTest,
                         ::testing::Values(8, 40, 264, 384, 512, 1528, 1536, 2064, 3584, 4104,
                                           8200),
                         [](const auto& in) { return std::to_string(in.param); });

// As many as fit beside the weights.
TEST(SmallBatchRowsTest, FollowFromColumnsAndSharedMemory) {
  constexpr DeviceLimits kHopper{132, 227 * 1024}, kLeast{58, 99 * 1024};
  for (const int64_t in : {8, 1536, 3584, 9000}) EXPECT_EQ(SmallBatchRows(in, kHopper), 8) << in;
  EXPECT_EQ(SmallBatchRows(19'000, kHopper), 4);
  EXPECT_EQ(SmallBatchRows(78'000, kHopper), 1);
  EXPECT_EQ(SmallBatchRows(90'000, kHopper), 0);
  EXPECT_EQ(SmallBatchRows(1536, kLeast), 8);
  EXPECT_EQ(SmallBatchRows(3584, kLeast), 4);
  EXPECT_EQ(SmallBatchRows(14'336, kLeast), 1);
  EXPECT_EQ(SmallBatchRows(16'000, kLeast), 1);
  EXPECT_EQ(SmallBatchRows(17'000, kLeast), 0);
}

}  // namespace
}  // namespace fox::cuda::testing
