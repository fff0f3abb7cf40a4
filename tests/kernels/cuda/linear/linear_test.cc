// LinearEngine against float64 on the host: every product (decode rows and prefill rows, few and
// many), every transform, odd shapes and strides; that rows depend neither on their neighbours nor
// on how many there are; and chains of calls that overlap, alone and in a graph, against the same
// calls one at a time.
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

#include "kernels/cuda/linear/cublas_gemm.h"
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
      if (rows > 1) Expect({.in = &x, .weight = &weight, .decodes = false}, DType::kF32, rows % 2);
      if (HasFatalFailure()) return;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(In, LinearShapeTest,
                         ::testing::Values(8, 16, 48, 64, 384, 1536, 3584, 8192),
                         [](const auto& in) { return std::to_string(in.param); });

// Each prompt's last chunk brings a new number of rows, and a choice of an algorithm costs time.
TEST(CublasGemmTest, NumbersOfRowsShareAnAlgorithm) {
  constexpr int64_t kIn = 64, kOut = 128;
  constexpr size_t kWorkspace = size_t{1} << 20;
  testing::DeviceArray<char> workspace(kWorkspace);
  CublasGemm gemm(workspace.data(), kWorkspace);
  Uniform uniform(7);
  TestMatrix weight(DType::kBF16, kOut, kIn, 0), x(DType::kBF16, 192, kIn, 0);
  TestMatrix out(DType::kF32, 192, kOut, 0);
  weight.FillUniform(uniform, 1);
  x.FillUniform(uniform, 1);
  const DeviceWeight packed(kOut, kIn, {weight.view().data, 0, [](void*, size_t) {}});
  const auto multiply = [&](int64_t rows) {
    const LinearParams params{
        .in = x.view().Rows(0, rows), .weight = packed, .out = out.view().Rows(0, rows)};
    ASSERT_EQ(gemm.Multiply(params.in, params, nullptr), cudaSuccess) << rows;
  };
  for (int64_t rows = 65; rows <= 128; ++rows) multiply(rows);
  EXPECT_EQ(gemm.known_shapes(), 2u);  // 128 rows, and the many whose kind of kernel all take
  multiply(129);
  EXPECT_EQ(gemm.known_shapes(), 3u);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
}

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
        for (const bool decodes : {true, false}) {
          Call call{.in = &x, .weight = &weight, .decodes = decodes};
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
    if (GetParam() == 1) return;
    Expect({.in = &x, .transform = transform, .weight = &weight, .decodes = false}, DType::kF32, 0);
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

// First row and number of rows of a call.
using Rows = std::pair<int64_t, int64_t>;

class LinearBitsTest : public LinearTest {
 protected:
  // That rows have the bits, in calls of these rows alone, that they have among all.
  void ExpectSameBits(const Call& call, DType dtype, const std::vector<Rows>& parts) {
    const auto run = [&](Rows rows) {
      TestMatrix y(dtype, call.in->rows(), call.weight->rows() / (call.gated ? 2 : 1), 0);
      Uniform uniform(13);
      if (call.accumulate) y.FillUniform(uniform, 3);
      // In its place among all: how it is aligned may choose a kernel, too.
      EXPECT_EQ(Run(call, y, rows.first, rows.second, rows.first), cudaSuccess);
      y.Download();
      return y;
    };
    const TestMatrix all = run({0, call.in->rows()});
    for (const Rows& rows : parts) {
      const TestMatrix some = run(rows);
      for (int64_t r = rows.first; r < rows.first + rows.second; ++r) {
        for (int64_t c = 0; c < all.cols(); ++c) {
          ASSERT_EQ(some.At(r, c), all.At(r, c))
              << rows.second << " rows from " << rows.first << ": row " << r << " column " << c;
        }
      }
    }
  }

  // The products of a layer and of the vocabulary, and rows that are aligned to 16 bytes and no
  // more.
  void ExpectSameBits(int64_t all, bool decodes, const std::vector<Rows>& parts) {
    Uniform uniform(12);
    const auto expect = [&](int64_t out, int64_t cols, DType in_dtype, DType dtype, Call call) {
      const bool halves = call.transform.kind == Kind::kGatedAct;
      TestMatrix x(in_dtype, all, cols, 0);
      TestMatrix weight(DType::kBF16, out, halves ? cols / 2 : cols, 0);
      TestMatrix bias(DType::kF32, 1, out, 0);
      x.FillUniform(uniform, 2);
      weight.FillUniform(uniform, 1);
      bias.FillUniform(uniform, 2);
      call.in = &x;
      call.weight = &weight;
      if (dtype == DType::kBF16 && !call.gated) call.bias = &bias;
      call.decodes = decodes;
      ExpectSameBits(call, dtype, parts);
    };
    const TransformCase norm{.kind = Kind::kRmsNorm};
    expect(7752, 1536, DType::kF32, DType::kBF16, {.transform = norm});
    expect(7168, 1536, DType::kF32, DType::kF32, {.transform = norm});
    expect(1536, 7168, DType::kBF16, DType::kF32,
           {.transform = {.kind = Kind::kGatedAct, .act = Activation::kSilu}, .accumulate = true});
    // Rows of float32 that are not aligned to 16 bytes: logits, which decode rows alone have.
    if (decodes) expect(17003, 512, DType::kF32, DType::kF32, {.transform = norm});
    expect(200, 1544, DType::kBF16, DType::kBF16, {});
    expect(1000, 520, DType::kBF16, DType::kF32, {.accumulate = true});
    if (!engine_.has_decode_family()) return;
    expect(7168, 1536, DType::kF32, DType::kBF16, {.transform = norm, .gated = Activation::kSilu});
    if (!decodes) return;
    expect(7168, 1536, DType::kF32, DType::kF32, {.transform = norm, .apart = true});
    expect(65, 40, DType::kF32, DType::kF32, {.transform = norm, .apart = true});
  }
};

// This also shows what is assumed of cuBLASLt (linear.h).
TEST_F(LinearBitsTest, RowsAreIndependent) {
  if (engine_.has_decode_family()) {
    ExpectSameBits(200, true, {{0, 1}, {129, 1}, {3, 2}, {9, 4}, {10, 5}, {0, 64}, {7, 130}});
    ExpectSameBits(300, false,
                   {{0, 2}, {129, 2}, {3, 3}, {9, 5}, {10, 16}, {1, 64}, {7, 129}, {0, 256}});
    return;
  }
  ExpectSameBits(4, true, {{0, 1}, {1, 3}});
  ExpectSameBits(8, true, {{3, 5}, {1, 7}});
  ExpectSameBits(16, true, {{7, 9}, {1, 15}});
}

// What a product leaves is what TakeApart makes of its output.
TEST_F(LinearBitsTest, LeftRowsAreThoseTakenApart) {
  if (!engine_.has_decode_family()) GTEST_SKIP() << "no decode family";
  constexpr int64_t kIn = 384;
  for (const int64_t out : {40, 1536}) {
    for (const int64_t rows : {5, 64, 70}) {
      Uniform uniform(14);
      TestMatrix x(DType::kBF16, rows, kIn, 0), weight(DType::kBF16, out, kIn, 0);
      TestMatrix norm(DType::kF32, 1, out, 0), y(DType::kF32, rows, out, 0);
      x.FillUniform(uniform, 1);
      weight.FillUniform(uniform, 1);
      norm.FillUniform(uniform, 2);
      y.FillUniform(uniform, 5);
      const int64_t sums = NormedRows::SumsOf(out);
      TestMatrix left(DType::kBF16, rows, out, 0), apart(DType::kBF16, rows, out, 0);
      TestMatrix left_sums(DType::kF32, rows, sums, 0), apart_sums(DType::kF32, rows, sums, 0);
      const auto to = [&](const TestMatrix& normed, const TestMatrix& squares) {
        return NormedRows{.rows = normed.view(),
                          .sums = static_cast<float*>(squares.view().data),
                          .weight = norm.view().data,
                          .eps = TransformCase::kEps};
      };
      ASSERT_EQ(
          Run({.in = &x, .weight = &weight, .accumulate = true, .leaves = to(left, left_sums)}, y),
          cudaSuccess);
      ASSERT_EQ(TakeApart(y.view(), to(apart, apart_sums), stream_), cudaSuccess);
      for (TestMatrix* result : {&left, &apart, &left_sums, &apart_sums}) result->Download();
      EXPECT_EQ(left.host(), apart.host()) << rows << " x " << out;
      EXPECT_EQ(left_sums.host(), apart_sums.host()) << rows << " x " << out;
    }
  }
}

TEST_F(LinearTest, NoRowsAreNoWork) {
  TestMatrix x(DType::kBF16, 1, 64, 0), weight(DType::kBF16, 32, 64, 0), out(DType::kF32, 1, 32, 0);
  EXPECT_EQ(Run({.in = &x, .weight = &weight}, out, 0, 0), cudaSuccess);
}

// A few layers' worth of calls, each reading what the one before wrote, on buffers that all layers
// share: x += down(act(gate_up(norm(x)))), x += o(gate(h)), as in a model; of decode rows and, with
// gated products where there are some, of prefill rows. Here reading too early, writing too early,
// and leftovers of the split sums would show.
class LinearChainTest : public LinearTest,
                        public ::testing::WithParamInterface<std::tuple<int64_t, bool>> {
 protected:
  static constexpr int64_t kHidden = 512, kInner = 1024;
  static constexpr int kLayers = 6;

  LinearChainTest() {
    Uniform uniform(21);
    norm_.FillUniform(uniform, 2);
    for (TestMatrix& w : gate_up_) w.FillUniform(uniform, 0.05f);
    for (TestMatrix& w : down_) w.FillUniform(uniform, 0.05f);
    for (TestMatrix& w : o_) w.FillUniform(uniform, 0.05f);
    scratch_ = std::make_unique<TestMatrix>(DType::kBF16, rows_, kInner, 0);
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
    const auto run = [&](Call call, const TestMatrix& out) {
      call.decodes = decodes_;
      EXPECT_EQ(Run(call, out), cudaSuccess);
      after();
    };
    const bool gates = !decodes_ && engine_.has_decode_family();
    for (size_t n = 0; n < kLayers; ++n) {
      Call gate_up{.in = &x_,
                   .transform = {.kind = Kind::kRmsNorm, .weight = &norm_},
                   .weight = &gate_up_[n]};
      Call down{.in = &gated_, .weight = &down_[n], .accumulate = true};
      if (gates) {
        gate_up.gated = Activation::kSilu;
      } else {
        down.in = &inner_;
        down.transform = {.kind = Kind::kGatedAct, .act = Activation::kSilu};
      }
      run(gate_up, gates ? gated_ : inner_);
      run(down, x_);
      run({.in = &x_, .transform = {.kind = Kind::kRmsNorm}, .weight = &o_[n]}, h_);
      run({.in = &h_, .weight = &o_[kLayers - 1 - n], .accumulate = true}, x_);
    }
  }

  std::vector<float> OneAtATime(uint64_t seed) {
    FillInput(seed);
    Enqueue([&] { EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess); });
    x_.Download();
    return x_.host();
  }

  const int64_t rows_ = std::get<0>(GetParam());
  const bool decodes_ = std::get<1>(GetParam());
  TestMatrix norm_{DType::kF32, 1, kHidden, 0};
  std::vector<TestMatrix> gate_up_ = Weights(2 * kInner, kHidden);
  std::vector<TestMatrix> down_ = Weights(kHidden, kInner);
  std::vector<TestMatrix> o_ = Weights(kHidden, kHidden);
  TestMatrix x_{DType::kF32, rows_, kHidden, 0};
  TestMatrix inner_{DType::kBF16, rows_, 2 * kInner, 0}, gated_{DType::kBF16, rows_, kInner, 0};
  TestMatrix h_{DType::kBF16, rows_, kHidden, 0};
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

const auto kRowsOf = [](const auto& chain) { return std::to_string(std::get<0>(chain.param)); };

INSTANTIATE_TEST_SUITE_P(Decodes, LinearChainTest,
                         ::testing::Combine(::testing::Values(1, 4, 7, 32, 64, 100, 260),
                                            ::testing::Values(true)),
                         kRowsOf);
INSTANTIATE_TEST_SUITE_P(Prefills, LinearChainTest,
                         ::testing::Combine(::testing::Values(2, 70, 260),
                                            ::testing::Values(false)),
                         kRowsOf);

}  // namespace
}  // namespace fox::cuda
