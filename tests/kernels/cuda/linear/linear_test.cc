// LinearEngine against float64 on the host: every product (decode rows and prefill rows, few and
// many), norms and gates, odd shapes and strides; that rows depend neither on their neighbours nor
// on the number of rows; weights of 8 bits against the same weights in bf16; and chains of calls
// that overlap, against the same calls one at a time.
#include "kernels/cuda/linear/linear.h"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "kernels/cuda/linear/cublas_gemm.h"
#include "kernels/cuda/linear/gemm_kernels.h"
#include "tests/kernels/cuda/linear/linear_calls.h"
#include "tests/kernels/cuda/test_matrix.h"

namespace fox::cuda::testing {
namespace {

class LinearShapeTest : public LinearTest, public ::testing::WithParamInterface<int64_t> {};

// Operands that bf16 holds: only the order of float32 sums is between us and float64.
TEST_P(LinearShapeTest, MatchesFloat64) {
  const int64_t in = GetParam();
  Uniform uniform(static_cast<uint64_t>(in));
  for (const int64_t out : {1, 7, 16, 65, 384, 1536}) {
    TestMatrix weight(DType::kBF16, out, in, 0, uniform, 1);
    for (const int64_t rows : {1, 2, 3, 4, 5, 8, 9, 31, 32, 33, 64, 65, 260}) {
      TestMatrix x(DType::kBF16, rows, in, 8, uniform, 1);
      Expect({.in = &x, .weight = &weight}, DType::kF32, rows % 2);
      if (rows > 1) Expect({.in = &x, .weight = &weight, .decode_rows = 0}, DType::kF32, rows % 2);
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
  DeviceArray<char> workspace(kWorkspace);
  CublasGemm gemm(workspace.data(), kWorkspace);
  Uniform uniform(7);
  TestMatrix weight(DType::kBF16, kOut, kIn, 0, uniform, 1),
      x(DType::kBF16, 192, kIn, 0, uniform, 1);
  TestMatrix out(DType::kF32, 192, kOut, 0);
  const DeviceWeight packed(kOut, kIn, {weight.view().data, 0, [](void*, size_t) {}});
  const auto multiply = [&](int64_t rows) {
    ASSERT_EQ(
        gemm.Multiply(x.view().Rows(0, rows), packed, false, out.view().Rows(0, rows), nullptr),
        cudaSuccess)
        << rows;
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
  TestMatrix weight(DType::kBF16, kOut, kIn, 0, uniform, 1),
      norm(DType::kF32, 1, kIn, 0, uniform, 2);
  for (const int64_t rows : {1, 4, 33, 65}) {
    TestMatrix x(DType::kF32, rows, kIn, 0, uniform, 3);
    Expect({.in = &x, .norm = &norm, .weight = &weight}, DType::kF32, 0);
    if (HasFatalFailure()) return;
  }
}

TEST_F(LinearTest, BiasAccumulateAndTypes) {
  Uniform uniform(6);
  for (const int64_t out : {65, 1536}) {
    for (const int64_t in : {40, 1536}) {
      TestMatrix weight(DType::kBF16, out, in, 0, uniform, 1),
          bias(DType::kF32, 1, out, 0, uniform, 20);
      for (const int64_t rows : {3, 8, 20, 70}) {
        TestMatrix x(DType::kBF16, rows, in, 16, uniform, 1);
        for (const int64_t decodes : {rows, int64_t{0}, rows / 3}) {
          Call call{.in = &x, .weight = &weight, .decode_rows = decodes};
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

class LinearRowsTest : public LinearTest, public ::testing::WithParamInterface<int64_t> {
 protected:
  // Checks the call with decode rows and with prefill rows.
  void ExpectBoth(Call call, DType dtype) {
    Expect(call, dtype, 0);
    call.decode_rows = 0;
    if (rows_ > 1) Expect(call, dtype, 0);
  }

  const int64_t rows_ = GetParam();
  Uniform uniform_{11};
};

TEST_P(LinearRowsTest, Norms) {
  for (const int64_t in : {8, 64, 384, 1536, 2064, 4096}) {
    TestMatrix x(DType::kF32, rows_, in, 8, uniform_, 4),
        weight(DType::kBF16, 200, in, 0, uniform_, 1);
    TestMatrix norm(DType::kF32, 1, in, 0, uniform_, 2);
    ExpectBoth({.in = &x, .norm = &norm, .weight = &weight}, DType::kF32);
    if (HasFatalFailure()) return;
  }
}

TEST_P(LinearRowsTest, Gates) {
  for (const int64_t inner : {8, 384, 3584}) {
    for (const int64_t in : {64, 1536}) {
      TestMatrix x(DType::kBF16, rows_, in, 8, uniform_, 1),
          residual(DType::kF32, rows_, in, 0, uniform_, 4);
      TestMatrix weight(DType::kBF16, 2 * inner, in, 0, uniform_, 0.1f),
          norm(DType::kF32, 1, in, 0, uniform_, 1);
      ExpectBoth({.in = &x, .weight = &weight, .gate = Activation::kSigmoid}, DType::kBF16);
      ExpectBoth({.in = &residual, .norm = &norm, .weight = &weight, .gate = Activation::kSilu},
                 DType::kBF16);
      if (HasFatalFailure()) return;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Rows, LinearRowsTest, ::testing::Values(1, 2, 3, 4, 6, 8, 9, 32, 260),
                         [](const auto& rows) { return std::to_string(rows.param); });

// First row and number of rows of a call.
using Rows = std::pair<int64_t, int64_t>;

class LinearBitsTest : public LinearTest {
 protected:
  TestMatrix Result(const Call& call, DType dtype, Rows rows) {
    TestMatrix y(dtype, call.in->rows(), call.outputs(), 0);
    Uniform uniform(13);
    if (call.accumulate) y.FillUniform(uniform, 3);
    // In its place among all: how it is aligned may choose a kernel, too.
    EXPECT_EQ(Run(call, y, rows.first, rows.second, rows.first), cudaSuccess);
    y.Download();
    return y;
  }

  static void ExpectSameRows(const TestMatrix& some, const TestMatrix& all, Rows rows) {
    for (int64_t r = rows.first; r < rows.first + rows.second; ++r) {
      for (int64_t c = 0; c < all.cols(); ++c) {
        ASSERT_EQ(some.At(r, c), all.At(r, c))
            << rows.second << " rows from " << rows.first << ": row " << r << " column " << c;
      }
    }
  }

  // f(call, type of the output) for the products of a layer and of the vocabulary, and for rows
  // that are aligned to 16 bytes and no more.
  template <typename F>
  void ForEachProduct(int64_t rows, bool decodes, const F& f) {
    Uniform uniform(12);
    const auto run = [&](int64_t out, int64_t in, bool normed, DType dtype, Call call) {
      TestMatrix x(normed ? DType::kF32 : DType::kBF16, rows, in, 0, uniform, 2),
          norm(DType::kF32, 1, in, 0, uniform, 2);
      TestMatrix weight(DType::kBF16, out, in, 0, uniform, 1),
          bias(DType::kF32, 1, out, 0, uniform, 2);
      call.in = &x;
      call.weight = &weight;
      if (normed) call.norm = &norm;
      if (dtype == DType::kBF16 && !call.gate) call.bias = &bias;
      f(call, dtype);
    };
    run(7752, 1536, true, DType::kBF16, {});
    run(7168, 1536, true, DType::kBF16, {.gate = Activation::kSilu});
    run(4000, 520, true, DType::kBF16, {.gate = Activation::kSilu});
    run(528, 264, true, DType::kBF16, {.gate = Activation::kSilu});
    run(1536, 3584, false, DType::kF32, {.accumulate = true});
    run(7168, 1536, true, DType::kF32, {});
    // Rows of float32 that are not aligned to 16 bytes: logits, which decode rows alone have; the
    // last chunks of classes missing in each of a block's tiles.
    if (decodes) run(17003, 584, true, DType::kF32, {});
    if (decodes) run(65, 40, true, DType::kF32, {});
    if (decodes) run(700, 2064, true, DType::kBF16, {});
    if (decodes)
      run(8640, 2104, false, DType::kF32, {});  // more blocks than SMs, tiles than stages
    run(200, 1544, false, DType::kBF16, {});
    run(300, 640, false, DType::kF32, {});  // whole lines, no whole tiles
    run(2200, 520, false, DType::kF32, {.accumulate = true});
  }

  const bool hopper_ = HasClusterGemm();
  const int64_t own_rows_ = hopper_ ? 200 : LinearEngine::kMaxPassedRows;
};

// Each row alone, too, by another kernel: on every card decode rows have the same bits in any
// batch, on cards other than Hopper up to kMaxPassedRows.
TEST_F(LinearBitsTest, DecodeRowsAreIndependent) {
  std::vector<Rows> parts;
  for (int64_t n = 0; n < 32; ++n) {
    parts.emplace_back(n, 1);
    parts.emplace_back(n, 32 - n);
  }
  if (hopper_) parts.insert(parts.end(), {{129, 1}, {0, 64}, {7, 130}});
  ForEachProduct(own_rows_, true, [&](const Call& call, DType dtype) {
    const TestMatrix all = Result(call, dtype, {0, own_rows_});
    for (const Rows& rows : parts) ExpectSameRows(Result(call, dtype, rows), all, rows);
  });
}

// This also tests linear.h's assumption about cuBLASLt, on Hopper.
TEST_F(LinearBitsTest, PrefillRowsAreIndependent) {
  if (!hopper_) GTEST_SKIP() << "cuBLASLt may choose by the number of rows";
  ForEachProduct(300, false, [&](Call call, DType dtype) {
    call.decode_rows = 0;
    const TestMatrix all = Result(call, dtype, {0, 300});
    for (const Rows& rows :
         {Rows{0, 2}, {129, 2}, {3, 3}, {9, 5}, {10, 16}, {1, 64}, {7, 129}, {0, 256}}) {
      ExpectSameRows(Result(call, dtype, rows), all, rows);
    }
  });
}

// Decode rows in front of prefill rows, in one call.
TEST_F(LinearBitsTest, BothKindsOfRowsAreThoseOfTheirOwnCalls) {
  constexpr int64_t kRows = 100;
  ForEachProduct(kRows, false, [&](Call call, DType dtype) {
    for (const int64_t decodes : {1, 7, 30}) {
      const Rows first{0, decodes}, rest{decodes, kRows - decodes};
      call.decode_rows = decodes;
      const TestMatrix both = Result(call, dtype, {0, kRows});
      ExpectSameRows(Result(call, dtype, first), both, first);
      call.decode_rows = 0;
      if (hopper_) ExpectSameRows(Result(call, dtype, rest), both, rest);
    }
  });
}

// Rounded weights have the same bits in 8 bits as in bf16: decode rows, prefill rows, both; some of
// W's rows in bf16 where the product has no gate.
TEST_F(LinearBitsTest, WeightsOf8BitsHaveTheBitsOfTheSameInBf16) {
  for (const bool all_decode : {true, false}) {
    ForEachProduct(140, all_decode, [&](Call call, DType dtype) {
      const int64_t out = call.weight->rows();
      TestMatrix matrix(DType::kBF16, out, call.weight->cols(), 0);
      for (int64_t r = 0; r < out; ++r) {
        const float size = std::ldexp(1.0f, static_cast<int>(r % 40) - 20);  // exponents differ
        for (int64_t c = 0; c < matrix.cols(); ++c) matrix.At(r, c) = call.weight->At(r, c) * size;
      }
      const Fp8Weight fp8(&matrix, call.gate ? out : out - out / 9);
      call.weight = &matrix;
      const auto expect = [&](int64_t rows, int64_t decodes) {
        call.decode_rows = decodes;
        call.fp8 = nullptr;
        const TestMatrix want = Result(call, dtype, {0, rows});
        call.fp8 = &fp8;
        SCOPED_TRACE(std::to_string(out) + " outputs, of rows decode " + std::to_string(decodes));
        ExpectSameRows(Result(call, dtype, {0, rows}), want, {0, rows});
      };
      if (all_decode) {
        for (const int64_t rows : {1, 2, 3, 4, 5, 8, 9, 16, 17, 32, 33, 64, 65, 140}) {
          expect(rows, rows);
        }
      } else {
        for (const int64_t decodes : {0, 30, 40}) expect(140, decodes);
      }
    });
  }
}

// A product that knows the next norm stores its rows normed. The next product then has the same
// bits as from plain rows; and the normed rows are discarded when another operation writes to the
// rows.
TEST_F(LinearBitsTest, ANormThatAProductHasLeftIsTheNextOnes) {
  constexpr int64_t kIn = 384, kOut = 300;
  for (const int64_t hidden : {40, 1536}) {
    for (const int64_t rows : {3, 5, 64, 140}) {
      SCOPED_TRACE(rows);
      Uniform uniform(14);
      TestMatrix h(DType::kBF16, rows, kIn, 0), first(DType::kBF16, hidden, kIn, 0);
      TestMatrix norm(DType::kF32, 1, hidden, 0), other(DType::kF32, 1, hidden, 0);
      TestMatrix second(DType::kBF16, kOut, hidden, 0);
      TestMatrix x(DType::kF32, rows, hidden, 0), y(DType::kF32, rows, kOut, 0);
      for (TestMatrix* m : {&h, &first, &norm, &other, &second, &x}) m->FillUniform(uniform, 2);
      const auto follow = [&](const Call& call) {
        EXPECT_EQ(Run(call, y), cudaSuccess);
        y.Download();
        return y.host();
      };
      const Call add{.in = &h, .weight = &first, .accumulate = true, .next_norm = &norm};
      Call next{.in = &x, .norm = &norm, .weight = &second, .follows = true};
      ASSERT_EQ(Run(add, x), cudaSuccess);
      const std::vector<float> left = follow(next);
      next.norm = &other;
      const std::vector<float> by_other = follow(next);
      next.norm = &norm;
      EXPECT_EQ(follow(next), left);
      next.follows = false;
      EXPECT_EQ(follow(next), left);
      next.norm = &other;
      EXPECT_EQ(follow(next), by_other);
      // Another product, without a hint, and an operation that is no product write to them.
      next.norm = &norm;
      next.follows = true;
      ASSERT_EQ(Run({.in = &h, .weight = &first, .accumulate = true}, x), cudaSuccess);
      EXPECT_NE(follow(next), left);
      x.FillUniform(uniform, 2);
      engine_.Forget(x.view().data);
      const std::vector<float> fresh = follow(next);
      next.follows = false;
      EXPECT_EQ(follow(next), fresh);
    }
  }
}

TEST_F(LinearTest, NoRowsAreNoWork) {
  TestMatrix x(DType::kBF16, 1, 64, 0), weight(DType::kBF16, 32, 64, 0), out(DType::kF32, 1, 32, 0);
  EXPECT_EQ(Run({.in = &x, .weight = &weight}, out, 0, 0), cudaSuccess);
}

// A few layers' worth of calls, each reading what the one before wrote, on buffers that all layers
// share: x += down(gate_up(norm(x))), x += o(projection(norm(x))), as in a model; with a number of
// rows and of decode rows among them. Reading too early, writing too early, and leftovers of split
// sums would show here. Narrow: matrices so small that calls overlap most; wide: a model's, whose
// products have blocks on all SMs.
struct Chain {
  int64_t rows, decodes;
  bool fp8 = false, wide = false;
};
class LinearChainTest : public LinearTest, public ::testing::WithParamInterface<Chain> {
 protected:
  static constexpr int kLayers = 6;

  LinearChainTest() {
    Uniform uniform(21);
    norm_.FillUniform(uniform, 2);
    other_norm_.FillUniform(uniform, 2);
    for (TestMatrix& w : gate_up_) w.FillUniform(uniform, 0.05f);
    for (TestMatrix& w : down_) w.FillUniform(uniform, 0.05f);
    for (TestMatrix& w : o_) w.FillUniform(uniform, 0.05f);
    if (!GetParam().fp8) return;
    for (auto* weights : {&gate_up_, &down_, &o_}) {
      for (TestMatrix& w : *weights) fp8_.emplace(&w, std::make_unique<Fp8Weight>(&w, w.rows()));
    }
  }

  static std::vector<TestMatrix> Weights(int64_t out, int64_t in) {
    std::vector<TestMatrix> weights;
    for (int n = 0; n < kLayers; ++n) weights.emplace_back(DType::kBF16, out, in, 0);
    return weights;
  }

  // x after all calls; `after` runs after each call.
  std::vector<float> Results(const std::function<void()>& after) {
    Uniform uniform(1);
    x_.FillUniform(uniform, 1);
    const auto run = [&](Call call, const TestMatrix& out) {
      call.decode_rows = decodes_;
      call.follows = true;
      if (!fp8_.empty()) call.fp8 = fp8_.at(call.weight).get();
      EXPECT_EQ(Run(call, out), cudaSuccess);
      after();
    };
    engine_.Forget(x_.view().data);
    for (size_t n = 0; n < kLayers; ++n) {
      run({.in = &x_, .norm = &norm_, .weight = &gate_up_[n], .gate = Activation::kSilu}, inner_);
      run({.in = &inner_, .weight = &down_[n], .accumulate = true, .next_norm = &other_norm_}, x_);
      run({.in = &x_, .norm = &other_norm_, .weight = &o_[n]}, h_);
      run({.in = &h_, .weight = &o_[kLayers - 1 - n], .accumulate = true, .next_norm = &norm_}, x_);
    }
    x_.Download();
    return x_.host();
  }

  const int64_t rows_ = GetParam().rows, decodes_ = GetParam().decodes;
  const int64_t hidden_size_ = GetParam().wide ? 1536 : 512;
  const int64_t inner_size_ = GetParam().wide ? 4096 : 1024;
  TestMatrix norm_{DType::kF32, 1, hidden_size_, 0}, other_norm_{DType::kF32, 1, hidden_size_, 0};
  std::vector<TestMatrix> gate_up_ = Weights(2 * inner_size_, hidden_size_);
  std::vector<TestMatrix> down_ = Weights(hidden_size_, inner_size_);
  std::vector<TestMatrix> o_ = Weights(hidden_size_, hidden_size_);
  std::map<const TestMatrix*, std::unique_ptr<Fp8Weight>> fp8_;
  TestMatrix x_{DType::kF32, rows_, hidden_size_, 0}, inner_{DType::kBF16, rows_, inner_size_, 0};
  TestMatrix h_{DType::kBF16, rows_, hidden_size_, 0};
};

TEST_P(LinearChainTest, OverlappingCallsGiveTheSameBits) {
  const std::vector<float> want =
      Results([&] { EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess); });
  ASSERT_TRUE(std::none_of(want.begin(), want.end(), [](float x) { return std::isnan(x); }));
  for (int repeat = 0; repeat < 20; ++repeat) {
    ASSERT_EQ(Results([] {}), want) << "repetition " << repeat;
  }
}

INSTANTIATE_TEST_SUITE_P(RowsAndDecodes, LinearChainTest,
                         ::testing::Values(Chain{1, 1}, Chain{4, 4}, Chain{7, 7}, Chain{32, 32},
                                           Chain{64, 64}, Chain{100, 100}, Chain{260, 260},
                                           Chain{2, 0}, Chain{70, 0}, Chain{260, 0}, Chain{70, 3},
                                           Chain{70, 20}, Chain{1, 1, true}, Chain{8, 8, true},
                                           Chain{32, 32, true}, Chain{100, 100, true},
                                           Chain{70, 0, true}, Chain{70, 20, true},
                                           Chain{140, 40, true}, Chain{4, 4, false, true},
                                           Chain{61, 1, false, true}, Chain{62, 2, false, true},
                                           Chain{44, 4, false, true}, Chain{68, 8, false, true},
                                           Chain{62, 2, true, true}, Chain{44, 4, true, true},
                                           Chain{290, 2, true, true}),
                         [](const auto& chain) {
                           const Chain& c = chain.param;
                           return std::to_string(c.rows) + "x" + std::to_string(c.decodes) +
                                  (c.fp8 ? "x8bits" : "") + (c.wide ? "Wide" : "");
                         });

}  // namespace
}  // namespace fox::cuda::testing
