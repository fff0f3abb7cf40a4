// The kernel of one to four rows against float64: norms taken apart, wide rows, columns that no
// tensor core product ends with, gates against the transform; and which products it takes. Its
// other transforms are in linear_test.cc, where LinearEngine chooses it; its bits beside those of
// cluster_gemm.cu are in cluster_gemm_family_test.cc.
#include "kernels/cuda/linear/small_batch_gemm.h"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>

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
using Kind = InputTransform::Kind;

// Calls of the kernel itself, whatever LinearEngine would choose.
class SmallBatchGemmCalls : public LinearTest {
 protected:
  cudaError_t Start(const LinearParams& params) override {
    LinearParams with = params;
    with.transform.apart = apart_;
    EXPECT_TRUE(GemvTakes(with, limits_));
    return SmallBatchGemm(with, limits_, stream_);
  }

  static DeviceLimits LimitsOfDevice() {
    DeviceLimits limits;
    EXPECT_EQ(cudaDeviceGetAttribute(&limits.multiprocessors, cudaDevAttrMultiProcessorCount, 0),
              cudaSuccess);
    EXPECT_EQ(cudaDeviceGetAttribute(&limits.block_shared_bytes,
                                     cudaDevAttrMaxSharedMemoryPerBlockOptin, 0),
              cudaSuccess);
    return limits;
  }

  DeviceLimits limits_ = LimitsOfDevice();
  bool apart_ = false;
};

// By the number of columns: chunks, tiles and passes of a norm cut off.
class SmallBatchGemmTest : public SmallBatchGemmCalls,
                           public ::testing::WithParamInterface<int64_t> {
 protected:
  const int64_t in_ = GetParam();
  Uniform uniform_{static_cast<uint64_t>(in_)};
};

TEST_P(SmallBatchGemmTest, MatchesFloat64) {
  for (const int64_t out : {1, 140, 2200}) {
    TestMatrix weight(DType::kBF16, out, in_, 0), bias(DType::kF32, 1, out, 0);
    weight.FillUniform(uniform_, 1);
    bias.FillUniform(uniform_, 20);
    for (int64_t rows = 1; rows <= kMaxGemvRows; ++rows) {
      TestMatrix x(DType::kBF16, rows, in_, 8);
      x.FillUniform(uniform_, 1);
      Expect({.in = &x, .weight = &weight}, DType::kBF16, 1);
      Expect({.in = &x, .weight = &weight, .bias = &bias, .accumulate = true}, DType::kF32, 3);
      if (HasFatalFailure()) return;
    }
  }
}

// Both roundings are within the tolerance of the other: x * weight, and x * factor * weight.
TEST_P(SmallBatchGemmTest, NormsApartOrNot) {
  constexpr int64_t kOut = 300;
  TestMatrix weight(DType::kBF16, kOut, in_, 0), norm(DType::kF32, 1, in_, 0);
  TestMatrix bias(DType::kF32, 1, kOut, 0);
  weight.FillUniform(uniform_, 1);
  norm.FillUniform(uniform_, 2);
  bias.FillUniform(uniform_, 20);
  for (int64_t rows = 1; rows <= kMaxGemvRows; ++rows) {
    TestMatrix x(DType::kF32, rows, in_, 4);
    x.FillUniform(uniform_, 30);
    for (const TestMatrix* w : {&norm, static_cast<TestMatrix*>(nullptr)}) {
      for (const bool apart : {false, true}) {
        apart_ = apart;
        const TransformCase transform{.kind = Kind::kRmsNorm, .weight = w};
        Expect({.in = &x, .transform = transform, .weight = &weight, .bias = &bias}, DType::kF32,
               0);
        Expect({.in = &x, .transform = transform, .weight = &weight, .accumulate = true},
               DType::kF32, 5);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_P(SmallBatchGemmTest, GatedHasTheBitsOfProductAndTransform) {
  for (const int64_t inner : {8, 136, 2200}) {
    TestMatrix weight(DType::kBF16, 2 * inner, in_, 0), norm(DType::kF32, 1, in_, 0);
    weight.FillUniform(uniform_, 0.1f);
    norm.FillUniform(uniform_, 2);
    for (int64_t rows = 1; rows <= kMaxGemvRows; ++rows) {
      TestMatrix x(DType::kBF16, rows, in_, 8), residual(DType::kF32, rows, in_, 4);
      TestMatrix product(DType::kBF16, rows, 2 * inner, 8);
      TestMatrix want(DType::kBF16, rows, inner, 8), got(DType::kBF16, rows, inner, 8);
      x.FillUniform(uniform_, 1);
      residual.FillUniform(uniform_, 30);
      for (const bool norms : {false, true}) {
        const Activation act = norms ? Activation::kSilu : Activation::kSigmoid;
        Call call{.in = &x, .weight = &weight};
        if (norms) {
          call.in = &residual;
          call.transform = {.kind = Kind::kRmsNorm, .weight = &norm};
        }
        apart_ = norms;
        ASSERT_EQ(Run(call, product), cudaSuccess);
        ASSERT_EQ(TransformRows(product.view(), {.kind = Kind::kGatedAct, .act = act}, want.view(),
                                stream_),
                  cudaSuccess);
        call.gated = act;
        ASSERT_EQ(Run(call, got), cudaSuccess);
        want.Download();
        got.Download();
        ASSERT_EQ(got.host(), want.host()) << inner << " outputs of " << rows << " rows";
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(In, SmallBatchGemmTest,
                         ::testing::Values(8, 40, 264, 512, 1528, 1536, 2064, 3584, 4104, 8200),
                         [](const auto& in) { return std::to_string(in.param); });

// A norm's rows are float32, all others bf16.
TEST(GemvTakesTest, IsTheSameForAllRows) {
  constexpr DeviceLimits kHopper{132, 227 * 1024};
  const auto takes = [&](int64_t rows, int64_t in, DType dtype, Kind kind) {
    const DeviceWeight weight(16, in, {nullptr, 0, [](void*, size_t) {}});
    return GemvTakes({.in = {nullptr, dtype, rows, in, in},
                      .transform = {.kind = kind},
                      .weight = weight,
                      .out = {}},
                     kHopper);
  };
  for (int64_t rows = 1; rows <= kMaxGemvRows; ++rows) {
    for (const int64_t in : {8, 1528, 1536, 19'000}) {
      EXPECT_TRUE(takes(rows, in, DType::kBF16, Kind::kNone)) << in;
      EXPECT_TRUE(takes(rows, in, DType::kF32, Kind::kRmsNorm)) << in;
    }
    EXPECT_FALSE(takes(rows, 20'000, DType::kBF16, Kind::kNone));
    EXPECT_FALSE(takes(rows, 1532, DType::kBF16, Kind::kNone));
    EXPECT_FALSE(takes(rows, 1536, DType::kF32, Kind::kNone));
    EXPECT_FALSE(takes(rows, 1536, DType::kBF16, Kind::kRmsNorm));
  }
  EXPECT_FALSE(takes(0, 1536, DType::kBF16, Kind::kNone));
  EXPECT_FALSE(takes(kMaxGemvRows + 1, 1536, DType::kBF16, Kind::kNone));
}

}  // namespace
}  // namespace fox::cuda
