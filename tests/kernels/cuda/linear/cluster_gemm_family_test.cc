// The two kernels for decode rows are one family: a row has the same bits alone or among a few, by
// small_batch_gemm.cu, as among 64, by cluster_gemm.cu, whatever is done to it before and after the
// product.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include "kernels/cuda/linear/gemm_kernels.h"
#include "kernels/cuda/linear/row_transforms.h"
#include "tests/kernels/cuda/linear/linear_calls.h"
#include "tests/kernels/cuda/test_matrix.h"

namespace fox::cuda {
namespace {

using testing::Call;
using testing::LinearTest;
using testing::TestMatrix;
using testing::Uniform;

class ClusterGemmFamilyTest : public LinearTest,
                              public ::testing::WithParamInterface<std::tuple<int64_t, int64_t>> {
 protected:
  void SetUp() override {
    if (!HasClusterGemm()) GTEST_SKIP() << "no code for sm_90a, or no such device";
    weight_.FillUniform(uniform_, 1);
    bias_.FillUniform(uniform_, 20);
    before_.FillUniform(uniform_, 20);
    norm_.FillUniform(uniform_, 2);
  }

  cudaError_t Start(const LinearParams& params) override {
    if (few_) return SmallBatchGemm(params, kLimits, stream_);
    DeferredNorm x{params.in};
    if (params.norm) {
      x = {normed_.view(), static_cast<float*>(sums_.view().data)};
      if (const cudaError_t error = DeferNorm(params.in, *params.norm, x, stream_)) return error;
    }
    return ClusterGemm(x, params, {}, kLimits.multiprocessors, stream_);
  }

  // Rows [first, first + rows) by the kernel for few of them or the one for more.
  std::vector<float> Outputs(const Call& call, DType dtype, bool few, int64_t first, int64_t rows) {
    TestMatrix y(dtype, rows, call.outputs(), 0);
    for (int64_t r = 0; call.accumulate && r < rows; ++r) {
      for (int64_t c = 0; c < y.cols(); ++c) y.At(r, c) = before_.At(first + r, c);
    }
    y.Upload();
    few_ = few;
    EXPECT_EQ(Run(call, y, first, rows), cudaSuccess);
    y.Download();
    return y.host();
  }

  void ExpectSame(const Call& call, DType dtype) {
    const int64_t out = call.outputs();
    const std::vector<float> want = Outputs(call, dtype, false, 0, kRows);
    for (int64_t rows = 1; rows <= kMaxSmallBatchRows; ++rows) {
      for (const int64_t first : {int64_t{0}, int64_t{30}, kRows - rows}) {
        const std::vector<float> got = Outputs(call, dtype, true, first, rows);
        const auto differs = std::mismatch(got.begin(), got.end(), want.begin() + first * out);
        const int64_t at = differs.first - got.begin();
        ASSERT_EQ(at, rows * out) << "row " << at / out << " output " << at % out << " of " << rows
                                  << " rows from " << first << ": " << *differs.first << " not "
                                  << *differs.second;
      }
    }
  }

  void ExpectSame(const Call& call) {
    ExpectSame(call, DType::kF32);
    ExpectSame(call, DType::kBF16);
    Call adding = call;
    adding.bias = &bias_;
    ExpectSame(adding, DType::kBF16);
    adding.accumulate = true;
    ExpectSame(adding, DType::kF32);
    if (out_ % 2 != 0) return;
    Call gating = call;
    gating.gate = Activation::kSilu;
    ExpectSame(gating, DType::kBF16);
  }

  static constexpr int64_t kRows = 64;
  static constexpr DeviceLimits kLimits{.multiprocessors = 132, .block_shared_bytes = 227 * 1024};
  const int64_t out_ = std::get<0>(GetParam()), in_ = std::get<1>(GetParam());
  Uniform uniform_{71};
  TestMatrix weight_{DType::kBF16, out_, in_, 0};
  TestMatrix bias_{DType::kF32, 1, out_, 0}, before_{DType::kF32, kRows, out_, 0};
  TestMatrix norm_{DType::kF32, 1, in_, 0};
  TestMatrix normed_{DType::kBF16, kRows, in_, 0};
  TestMatrix sums_{DType::kF32, kRows, DeferredNorm::SumsOf(in_), 0};
  bool few_ = false;
};

TEST_P(ClusterGemmFamilyTest, PlainRows) {
  TestMatrix x(DType::kBF16, kRows, in_, 8);
  x.FillUniform(uniform_, 1);
  ExpectSame({.in = &x, .weight = &weight_});
}

TEST_P(ClusterGemmFamilyTest, NormedRows) {
  TestMatrix x(DType::kF32, kRows, in_, 0);
  x.FillUniform(uniform_, 30);
  ExpectSame({.in = &x, .norm = &norm_, .weight = &weight_});
}

INSTANTIATE_TEST_SUITE_P(Weights, ClusterGemmFamilyTest,
                         ::testing::Values(std::tuple{6216, 1536}, std::tuple{1536, 3584},
                                           std::tuple{65, 40}, std::tuple{1000, 520},
                                           std::tuple{700, 2064}, std::tuple{300, 4096},
                                           std::tuple{17001, 264}),
                         [](const auto& shape) {
                           return std::to_string(std::get<0>(shape.param)) + "x" +
                                  std::to_string(std::get<1>(shape.param));
                         });

}  // namespace
}  // namespace fox::cuda
