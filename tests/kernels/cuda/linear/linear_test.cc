// LinearEngine against float64 on the host: every product (few rows, some, many), every transform,
// odd shapes and strides; that rows depend neither on their neighbours nor on how many there are;
// and chains of calls that overlap, alone and in a graph, against the same calls one at a time.
#include "kernels/cuda/linear/linear.h"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

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

class LinearShapeTest : public LinearTest, public ::testing::WithParamInterface<int64_t> {};

// Operands that bf16 holds: only the order of float32 sums is between us and float64.
TEST_P(LinearShapeTest, MatchesFloat64) {
  const int64_t in = GetParam();
  Uniform uniform(static_cast<uint64_t>(in));
  for (const int64_t out : {1, 7, 16, 65, 384, 1536}) {
    TestMatrix weight(DType::kBF16, out, in, 0);
    weight.FillUniform(uniform, 1);
    for (const int64_t rows : {1, 2, 3, 4, 5, 8, 9, 31, 32, 33, 64, 65, 260}) {
      TestMatrix x(DType::kBF16, rows, in, 8);
      x.FillUniform(uniform, 1);
      Expect({.in = &x, .weight = &weight}, DType::kF32, rows % 2);
      if (HasFatalFailure()) return;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(In, LinearShapeTest,
                         ::testing::Values(8, 16, 48, 64, 384, 1536, 3584, 8192),
                         [](const auto& in) { return std::to_string(in.param); });

// As the vocabulary's projection: many outputs, an odd number of them.
TEST_F(LinearTest, ManyOutputs) {
  constexpr int64_t kOut = 50277, kIn = 512;
  Uniform uniform(5);
  TestMatrix weight(DType::kBF16, kOut, kIn, 0), norm(DType::kF32, 1, kIn, 0);
  weight.FillUniform(uniform, 1);
  norm.FillUniform(uniform, 2);
  for (const int64_t rows : {1, 4, 33, 65}) {
    TestMatrix x(DType::kF32, rows, kIn, 0);
    x.FillUniform(uniform, 3);
    Expect({.in = &x, .transform = {.kind = Kind::kRmsNorm, .weight = &norm}, .weight = &weight},
           DType::kF32, 0);
    if (HasFatalFailure()) return;
  }
}

TEST_F(LinearTest, BiasAccumulateAndTypes) {
  Uniform uniform(6);
  for (const int64_t out : {65, 1536}) {
    for (const int64_t in : {40, 1536}) {
      TestMatrix weight(DType::kBF16, out, in, 0), bias(DType::kF32, 1, out, 0);
      weight.FillUniform(uniform, 1);
      bias.FillUniform(uniform, 20);
      for (const int64_t rows : {3, 8, 20, 70}) {
        TestMatrix x(DType::kBF16, rows, in, 16);
        x.FillUniform(uniform, 1);
        Call call{.in = &x, .weight = &weight};
        Expect(call, DType::kBF16, 7);
        call.bias = &bias;
        Expect(call, DType::kBF16, 8);
        Expect(call, DType::kF32, 5);
        call.accumulate = true;
        Expect(call, DType::kF32, 0);
        call.bias = nullptr;
        Expect(call, DType::kF32, 3);
        if (HasFatalFailure()) return;
      }
    }
  }
}

class LinearTransformTest : public LinearTest, public ::testing::WithParamInterface<int64_t> {
 protected:
  static constexpr int64_t kOut = 200;

  void ExpectTransform(int64_t cols, DType dtype, const TransformCase& transform) {
    const int64_t in = transform.kind == Kind::kGatedAct ? cols / 2 : cols;
    TestMatrix x(dtype, GetParam(), cols, 8), weight(DType::kBF16, kOut, in, 0);
    x.FillUniform(uniform_, 4);
    weight.FillUniform(uniform_, 1);
    Expect({.in = &x, .transform = transform, .weight = &weight}, DType::kF32, 0);
  }

  Uniform uniform_{11};
};

TEST_P(LinearTransformTest, RmsNorm) {
  for (const int64_t cols : {64, 384, 1536, 2064, 4096}) {
    TestMatrix norm(DType::kF32, 1, cols, 0);
    norm.FillUniform(uniform_, 2);
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      ExpectTransform(cols, dtype, {.kind = Kind::kRmsNorm, .weight = &norm});
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(LinearTransformTest, OutputGate) {
  for (const auto& [cols, head_dim] : {std::pair{48, 16}, {384, 64}, {1536, 64}, {2048, 128}}) {
    TestMatrix norm(DType::kF32, 1, cols, 0), gate(DType::kBF16, GetParam(), cols, 6216);
    norm.FillUniform(uniform_, 2);
    gate.FillUniform(uniform_, 8);
    for (int options = 0; options < 8; ++options) {
      ExpectTransform(cols, DType::kBF16,
                      {.kind = Kind::kOutputGate,
                       .act = (options & 1) != 0 ? Activation::kSilu : Activation::kSigmoid,
                       .head_dim = head_dim,
                       .weight = (options & 2) != 0 ? &norm : nullptr,
                       .gate = (options & 4) != 0 ? &gate : nullptr});
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(LinearTransformTest, GatedActAndConversion) {
  for (const int64_t cols : {64, 768, 7168}) {
    ExpectTransform(cols, DType::kBF16, {.kind = Kind::kGatedAct, .act = Activation::kSilu});
    ExpectTransform(cols, DType::kF32, {.kind = Kind::kGatedAct, .act = Activation::kSigmoid});
    if (HasFatalFailure()) return;
  }
  ExpectTransform(1536, DType::kF32, {});
}

INSTANTIATE_TEST_SUITE_P(Rows, LinearTransformTest, ::testing::Values(1, 2, 3, 4, 6, 32, 260),
                         [](const auto& rows) { return std::to_string(rows.param); });

// Within a size class a row's bits depend neither on the number of rows nor on the other rows.
TEST_F(LinearTest, RowsAreIndependent) {
  Uniform uniform(12);
  for (const auto& [out, cols, kind] :
       {std::tuple{7752, 1536, Kind::kRmsNorm}, {1536, 7168, Kind::kGatedAct}}) {
    const int64_t in = kind == Kind::kGatedAct ? cols / 2 : cols;
    TestMatrix x(kind == Kind::kRmsNorm ? DType::kF32 : DType::kBF16, 64, cols, 0);
    TestMatrix weight(DType::kBF16, out, in, 0);
    x.FillUniform(uniform, 2);
    weight.FillUniform(uniform, 1);
    const Call call{
        .in = &x, .transform = {.kind = kind, .act = Activation::kSilu}, .weight = &weight};
    int64_t smaller = 0;
    for (const int64_t largest : {4, 8, 16}) {
      TestMatrix all(DType::kF32, largest, out, 0);
      ASSERT_EQ(Run(call, all, 0, largest), cudaSuccess);
      all.Download();
      for (const int64_t rows : {smaller + 1, largest - 1}) {
        const int64_t first = largest - rows;
        TestMatrix some(DType::kF32, rows, out, 0);
        ASSERT_EQ(Run(call, some, first, rows), cudaSuccess);
        some.Download();
        for (int64_t r = 0; r < rows; ++r) {
          for (int64_t c = 0; c < out; ++c) {
            ASSERT_EQ(some.At(r, c), all.At(first + r, c)) << rows << " rows: " << r << " " << c;
          }
        }
      }
      smaller = largest;
    }
  }
}

TEST_F(LinearTest, NoRowsAreNoWork) {
  TestMatrix x(DType::kBF16, 1, 64, 0), weight(DType::kBF16, 32, 64, 0), out(DType::kF32, 1, 32, 0);
  EXPECT_EQ(Run({.in = &x, .weight = &weight}, out, 0, 0), cudaSuccess);
}

// A few layers' worth of calls, each reading what the one before wrote, on buffers that all layers
// share: x += down(act(gate_up(norm(x)))), x += o(gate(h)), as in a model. Here reading too early,
// writing too early, and leftovers of the split sums would show.
class LinearChainTest : public LinearTest, public ::testing::WithParamInterface<int64_t> {
 protected:
  static constexpr int64_t kHidden = 512, kInner = 1024;
  static constexpr int kLayers = 6;

  LinearChainTest() {
    Uniform uniform(21);
    norm_.FillUniform(uniform, 2);
    for (TestMatrix& w : gate_up_) w.FillUniform(uniform, 0.05f);
    for (TestMatrix& w : down_) w.FillUniform(uniform, 0.05f);
    for (TestMatrix& w : o_) w.FillUniform(uniform, 0.05f);
    scratch_ = std::make_unique<TestMatrix>(DType::kBF16, GetParam(), kInner, 0);
  }

  static std::vector<TestMatrix> Weights(int64_t out, int64_t in) {
    std::vector<TestMatrix> weights;
    for (int n = 0; n < kLayers; ++n) weights.emplace_back(DType::kBF16, out, in, 0);
    return weights;
  }

  void FillInput(uint64_t seed) {
    Uniform uniform(seed);
    x_.FillUniform(uniform, 1);
  }

  // `after` runs after each call.
  void Enqueue(const std::function<void()>& after) {
    const auto run = [&](const Call& call, const TestMatrix& out) {
      EXPECT_EQ(Run(call, out), cudaSuccess);
      after();
    };
    for (size_t n = 0; n < kLayers; ++n) {
      run({.in = &x_,
           .transform = {.kind = Kind::kRmsNorm, .weight = &norm_},
           .weight = &gate_up_[n]},
          inner_);
      run({.in = &inner_,
           .transform = {.kind = Kind::kGatedAct, .act = Activation::kSilu},
           .weight = &down_[n],
           .accumulate = true},
          x_);
      run({.in = &x_, .transform = {.kind = Kind::kRmsNorm}, .weight = &o_[n]}, h_);
      run({.in = &h_,
           .transform = {.kind = Kind::kOutputGate, .weight = &norm_, .gate = &h_},
           .weight = &o_[kLayers - 1 - n],
           .accumulate = true},
          x_);
    }
  }

  std::vector<float> OneAtATime(uint64_t seed) {
    FillInput(seed);
    Enqueue([&] { EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess); });
    x_.Download();
    return x_.host();
  }

  TestMatrix norm_{DType::kF32, 1, kHidden, 0};
  std::vector<TestMatrix> gate_up_ = Weights(2 * kInner, kHidden);
  std::vector<TestMatrix> down_ = Weights(kHidden, kInner);
  std::vector<TestMatrix> o_ = Weights(kHidden, kHidden);
  TestMatrix x_{DType::kF32, GetParam(), kHidden, 0};
  TestMatrix inner_{DType::kBF16, GetParam(), 2 * kInner, 0};
  TestMatrix h_{DType::kBF16, GetParam(), kHidden, 0};
};

TEST_P(LinearChainTest, OverlappingCallsGiveTheSameBits) {
  const std::vector<float> want = OneAtATime(1);
  for (const float value : want) ASSERT_FALSE(std::isnan(value));
  for (int repeat = 0; repeat < 20; ++repeat) {
    FillInput(1);
    Enqueue([] {});
    x_.Download();
    ASSERT_EQ(x_.host(), want) << "repetition " << repeat;
  }
}

TEST_P(LinearChainTest, ReplaysOfAGraphSeeNewInputs) {
  const std::vector<float> first = OneAtATime(1), second = OneAtATime(2);
  ASSERT_NE(first, second);
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  ASSERT_EQ(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  Enqueue([] {});
  ASSERT_EQ(cudaStreamEndCapture(stream_, &graph), cudaSuccess);
  ASSERT_EQ(cudaGraphInstantiate(&executable, graph, 0), cudaSuccess);
  for (const auto& [seed, want] : {std::pair{1, &first}, {2, &second}, {1, &first}}) {
    FillInput(static_cast<uint64_t>(seed));
    ASSERT_EQ(cudaGraphLaunch(executable, stream_), cudaSuccess);
    ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
    x_.Download();
    EXPECT_EQ(x_.host(), *want) << "input " << seed;
  }
  EXPECT_EQ(cudaGraphExecDestroy(executable), cudaSuccess);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
}

INSTANTIATE_TEST_SUITE_P(Rows, LinearChainTest, ::testing::Values(1, 4, 7, 32, 64, 100, 260),
                         [](const auto& rows) { return std::to_string(rows.param); });

}  // namespace
}  // namespace fox::cuda
