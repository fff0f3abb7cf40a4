// LinearEngine against float64 on the host: every product (few rows, some, many), every transform,
// odd shapes and strides; that rows depend neither on their neighbours nor on how many there are;
// and chains of calls that overlap, alone and in a graph, against the same calls one at a time.
#include "kernels/cuda/linear/linear.h"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "kernels/cuda/linear/cluster_gemm.h"
#include "kernels/cuda/linear/device_weight.h"
#include "tests/kernels/cuda/device_array.h"
#include "tests/kernels/cuda/test_matrix.h"

namespace fox::cuda {
namespace {

using testing::TestMatrix;
using testing::TransformCase;
using testing::Uniform;
using Kind = InputTransform::Kind;

// One call's operands; null: absent.
struct Call {
  const TestMatrix* in = nullptr;
  TransformCase transform = {};
  const TestMatrix* weight = nullptr;  // [out, in] bf16
  const TestMatrix* bias = nullptr;    // [1, out] f32
  bool accumulate = false;
};

// About `budget` multiplications' worth of columns, the first and last ones among them.
std::vector<int64_t> ColumnsToCheck(int64_t out, int64_t rows, int64_t in) {
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
  LinearTest() { EXPECT_EQ(cudaStreamCreate(&stream_), cudaSuccess); }
  ~LinearTest() override { cudaStreamDestroy(stream_); }

  // `rows` < 0: all of them.
  cudaError_t Run(const Call& call, const TestMatrix& out, int64_t first = 0, int64_t rows = -1) {
    if (rows < 0) rows = call.in->rows();
    const int64_t width = call.weight->cols();
    if (scratch_ == nullptr || scratch_->rows() < rows || scratch_->cols() < width) {
      scratch_ = std::make_unique<TestMatrix>(DType::kBF16, rows, width, 8);
    }
    InputTransform t = call.transform.params();
    t.scratch = scratch_->view().Rows(0, rows).Columns(0, width);
    if (!t.gate.empty()) t.gate = t.gate.Rows(first, rows);
    const MatrixView weight = call.weight->view();
    const auto stays = [](void*, size_t) {};  // the matrix owns it
    return engine().Run({.in = call.in->view().Rows(first, rows),
                         .transform = t,
                         .weight = DeviceWeight(weight.rows, weight.cols, {weight.data, 0, stays}),
                         .bias = call.bias == nullptr ? nullptr : call.bias->view().data,
                         .accumulate = call.accumulate,
                         .out = out.view().Rows(0, rows)},
                        stream_);
  }

  // Runs `call` into a matrix of this type and gap and compares with float64.
  void Expect(const Call& call, DType dtype, int64_t gap);

  LinearEngine& engine() { return *engine_; }
  void UseEngine(FewRows few_rows) { engine_ = std::make_unique<LinearEngine>(few_rows); }

  cudaStream_t stream_ = nullptr;
  std::unique_ptr<TestMatrix> scratch_;

 private:
  std::unique_ptr<LinearEngine> engine_ = std::make_unique<LinearEngine>();
};

// The error of y = sum t_k w_k, with S = sum |t_k w_k|:
// - sums of k products in float32, by tensor cores that cut off rather than round, 8 or 16 terms at
//   a time in one chain or several: at most (k / 8 + 16) cuts of 2^-23 S;
// - the transformed t_k are rounded to bf16, each off by up to 2^-8 of itself. Independent errors:
//   by Hoeffding's inequality their sum stays below 7 * 2^-8 * sqrt(sum (t_k w_k)^2) but for one
//   case in 2e10; and never exceeds 2^-8 S;
// - the result is rounded to its type, and once before the bias where that is added later.
double Tolerance(const Call& call, double sum_abs, double sum_squares, double product, double want,
                 DType out) {
  const double k = static_cast<double>(call.weight->cols());
  double tolerance = (k / 8 + 16) * 0x1p-23 * sum_abs;
  if (call.transform.kind != Kind::kNone || call.in->view().dtype == DType::kF32) {
    tolerance += std::min(0x1p-8 * sum_abs, 7 * 0x1p-8 * std::sqrt(sum_squares));
    tolerance += testing::TransformError(call.in->cols()) * sum_abs;
  }
  const double rounding = out == DType::kF32 ? 0x1p-23 : 0x1p-8;
  return tolerance * (1 + rounding) + rounding * (std::abs(want) + std::abs(product)) + 1e-30;
}

void LinearTest::Expect(const Call& call, DType dtype, int64_t gap) {
  const int64_t rows = call.in->rows(), in = call.weight->cols(), out = call.weight->rows();
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
  const std::vector<int64_t> columns = ColumnsToCheck(out, rows, in);
  for (int64_t r = 0; r < rows; ++r) {
    const std::vector<double> t = testing::TransformedRow(call.transform, *call.in, r);
    ASSERT_EQ(t.size(), static_cast<size_t>(in));
    for (const int64_t c : columns) {
      double product = 0, sum_abs = 0, sum_squares = 0;
      for (int64_t k = 0; k < in; ++k) {
        const double term = t[static_cast<size_t>(k)] * call.weight->At(c, k);
        product += term;
        sum_abs += std::abs(term);
        sum_squares += term * term;
      }
      double want = product;
      if (call.bias != nullptr) want += call.bias->At(0, c);
      if (call.accumulate) want += before[static_cast<size_t>(r * stride + c)];
      ASSERT_LE(std::abs(result.At(r, c) - want),
                Tolerance(call, sum_abs, sum_squares, product, want, dtype))
          << "row " << r << " column " << c << " of " << rows << " x " << out << ", in " << in;
    }
  }
}

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

// Weights whose columns are split among 8, 4, 2 and 1 blocks, tiles of outputs and columns cut off.
class LinearFewRowsTest : public LinearTest,
                          public ::testing::WithParamInterface<std::tuple<int64_t, int64_t>> {
 protected:
  void SetUp() override {
    if (!HasClusterGemm()) GTEST_SKIP() << "no code for sm_90a, or no such device";
    UseEngine(FewRows::kClusterFrom1);
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

TEST_P(LinearFewRowsTest, MatchesFloat64) {
  Uniform uniform(32);
  for (const int64_t rows : {1, 5, 8, 16, 17, 40, 64, 65, 130}) {
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

// A row's bits are those that it has in a batch of 64, wherever it stands in a batch of 1 to 193.
// This also shows what wgmma_narrow.cuh assumes of the tensor cores.
TEST_P(LinearFewRowsTest, BitsDoNotDependOnTheNumberOfRows) {
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
  for (int64_t rows = 1; rows <= kMostRows; ++rows) {
    expect(0, rows);
    expect(x_.rows() - rows, rows);
    if (HasFatalFailure()) return;
  }
  for (const int64_t rows : {65, 72, 96, 128, 129, 193}) {
    expect(x_.rows() - rows, rows);
    if (HasFatalFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(Weights, LinearFewRowsTest,
                         ::testing::Values(std::tuple{1536, 1536}, std::tuple{1530, 3584},
                                           std::tuple{65, 40}, std::tuple{129, 520},
                                           std::tuple{2200, 1000}, std::tuple{6216, 1536},
                                           std::tuple{7168, 1528}, std::tuple{17001, 264}),
                         [](const auto& shape) {
                           return std::to_string(std::get<0>(shape.param)) + "x" +
                                  std::to_string(std::get<1>(shape.param));
                         });

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
