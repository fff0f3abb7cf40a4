// The products behind attention in one launch have the bits of the same products one by one, in
// every launch: blocks without outputs, several rounds of tiles side by side, rows cut off within a
// tile; and which products they are.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "kernels/cuda/linear/small_batch_gemm.h"
#include "tests/kernels/cuda/device_array.h"
#include "tests/kernels/cuda/linear/linear_calls.h"
#include "tests/kernels/cuda/test_matrix.h"

namespace fox::cuda {
namespace {

using testing::DeviceArray;
using testing::TestMatrix;
using testing::Uniform;
using Kind = InputTransform::Kind;

struct Widths {
  int64_t hidden, inner, projected;
};

DeviceWeight WeightOf(const TestMatrix& m) {
  const MatrixView v = m.view();
  return DeviceWeight(v.rows, v.cols, {v.data, 0, [](void*, size_t) {}});
}

// By these widths and the length of the chain.
class SmallBatchGemmChainTest : public ::testing::TestWithParam<std::tuple<Widths, size_t>> {
 protected:
  using Outputs = std::pair<std::vector<float>, std::vector<float>>;

  SmallBatchGemmChainTest() {
    EXPECT_EQ(cudaStreamCreate(&stream_), cudaSuccess);
    EXPECT_EQ(cudaDeviceGetAttribute(&limits_.multiprocessors, cudaDevAttrMultiProcessorCount, 0),
              cudaSuccess);
    EXPECT_EQ(cudaDeviceGetAttribute(&limits_.block_shared_bytes,
                                     cudaDevAttrMaxSharedMemoryPerBlockOptin, 0),
              cudaSuccess);
    Uniform uniform(7);
    for (TestMatrix* m : {&o_, &gate_up_, &down_, &projection_}) m->FillUniform(uniform, 0.1f);
    for (TestMatrix* m : {&attended_, &norm_, &bias_}) m->FillUniform(uniform, 2);
  }
  ~SmallBatchGemmChainTest() override { cudaStreamDestroy(stream_); }

  std::array<LinearParams, 4> Products() {
    const InputTransform norm{
        .kind = Kind::kRmsNorm, .weight = norm_.view().data, .eps = 1e-5, .apart = true};
    const InputTransform act{.kind = Kind::kGatedAct, .act = Activation::kSilu};
    const MatrixView x = x_.view(), y = y_.view();
    return {{{.in = attended_.view(),
              .weight = weights_[0],
              .accumulate = true,
              .decodes = true,
              .out = x},
             {.in = x, .transform = norm, .weight = weights_[1], .decodes = true, .out = y},
             {.in = y,
              .transform = act,
              .weight = weights_[2],
              .accumulate = true,
              .decodes = true,
              .out = x},
             {.in = x,
              .transform = norm,
              .weight = weights_[3],
              .bias = bias_.view().data,
              .decodes = true,
              .out = projected_.view()}}};
  }

  // The residual stream and the projection behind them.
  template <typename Launch>
  Outputs Run(const Launch& launch) {
    const std::array<LinearParams, 4> products = Products();
    Uniform same(11);
    x_.FillUniform(same, 4);
    projected_.FillUniform(same, 4);
    EXPECT_EQ(launch(std::span(products).first(count_)), cudaSuccess);
    EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
    x_.Download();
    projected_.Download();
    return {x_.host(), projected_.host()};
  }

  const Widths widths_ = std::get<0>(GetParam());
  const int64_t hidden_ = widths_.hidden, inner_ = widths_.inner;
  const size_t count_ = std::get<1>(GetParam());
  cudaStream_t stream_ = nullptr;
  DeviceLimits limits_;
  TestMatrix o_{DType::kBF16, hidden_, hidden_, 0};
  TestMatrix gate_up_{DType::kBF16, 2 * inner_, hidden_, 0};
  TestMatrix down_{DType::kBF16, hidden_, inner_, 0};
  TestMatrix projection_{DType::kBF16, widths_.projected, hidden_, 0};
  const std::array<DeviceWeight, 4> weights_{WeightOf(o_), WeightOf(gate_up_), WeightOf(down_),
                                             WeightOf(projection_)};
  TestMatrix attended_{DType::kBF16, 1, hidden_, 0}, norm_{DType::kF32, 1, hidden_, 0};
  TestMatrix bias_{DType::kF32, 1, widths_.projected, 0};
  TestMatrix x_{DType::kF32, 1, hidden_, 0}, y_{DType::kBF16, 1, 2 * inner_, 0};
  TestMatrix projected_{DType::kBF16, 1, widths_.projected, 0};
};

TEST_P(SmallBatchGemmChainTest, HasTheBitsOfItsProducts) {
  constexpr int kLaunches = 20;
  const Outputs want = Run([&](std::span<const LinearParams> products) {
    for (const LinearParams& params : products) {
      const cudaError_t error = SmallBatchGemm(params, limits_, stream_);
      if (error != cudaSuccess) return error;
    }
    return cudaSuccess;
  });
  const DeviceArray<uint64_t> words(std::vector<uint64_t>(kChainWords, 0));
  for (int i = 0; i < kLaunches; ++i) {
    const Outputs got = Run([&](std::span<const LinearParams> products) {
      return SmallBatchGemmChain(products, words.data(), limits_, stream_);
    });
    ASSERT_EQ(got, want) << "launch " << i;
  }
}

TEST_P(SmallBatchGemmChainTest, TakesTheProductsOfOneRow) {
  std::array<LinearParams, 4> products = Products();
  const std::span<const LinearParams> chain = std::span(products).first(count_);
  EXPECT_TRUE(ChainTakes(chain, limits_));
  EXPECT_FALSE(ChainTakes(chain.first(2), limits_));
  EXPECT_FALSE(ChainTakes(chain.subspan(1), limits_));
  DeviceLimits many = limits_;
  many.multiprocessors = static_cast<int>(hidden_) + 1;
  EXPECT_FALSE(ChainTakes(chain, many));
  products[1].transform.apart = false;
  EXPECT_FALSE(ChainTakes(chain, limits_));
  products[1].transform.apart = true;
  for (LinearParams& params : products) params.in.rows = params.out.rows = 2;
  EXPECT_FALSE(ChainTakes(chain, limits_));
}

INSTANTIATE_TEST_SUITE_P(
    Widths, SmallBatchGemmChainTest,
    ::testing::Combine(::testing::Values(Widths{1536, 3584, 6192}, Widths{264, 520, 40},
                                         Widths{2304, 5640, 9000}, Widths{1544, 1024, 300}),
                       ::testing::Values(size_t{3}, size_t{4})),
    [](const auto& in) {
      return std::to_string(std::get<0>(in.param).hidden) + "_" +
             std::to_string(std::get<1>(in.param));
    });

}  // namespace
}  // namespace fox::cuda
