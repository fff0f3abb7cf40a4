// Products of prefill rows by weights of 8 bits as they lie: against float64, and bit by bit
// against the same weights in bf16, whose kernels are others; and a row's bits depend neither on
// the other rows nor on the tiles.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/core/dtype.h"
#include "kernels/cuda/linear/gemm_kernels.h"
#include "tests/kernels/cuda/linear/linear_calls.h"
#include "tests/kernels/cuda/test_matrix.h"

namespace fox::cuda::testing {
namespace {

// A weight [out, in], its last `tail` rows in bf16, and the kind of its product.
struct Product8 {
  const char* name;
  int64_t out, in, tail;
  DType dtype;
  bool gated = false, accumulates = false, biased = false;
};

class PrefillFp8GemmTest : public LinearTest, public ::testing::WithParamInterface<Product8> {
 protected:
  void SetUp() override {
    if (!HasClusterGemm()) GTEST_SKIP() << "no code for sm_90a, or no such device";
  }

  // The engine, for all of the call's rows, or the kernel.
  cudaError_t Start(const LinearParams& params) override {
    if (multiprocessors_ == 0) return LinearTest::Start(params);
    return PrefillFp8Gemm(params.in, params, multiprocessors_, stream_);
  }

  Call MakeCall(const TestMatrix& x) const {
    Call call{.in = &x, .weight = &weight_, .decode_rows = 0};
    if (kind_.gated) call.gate = Activation::kSilu;
    if (kind_.biased) call.bias = &bias_;
    call.accumulate = kind_.accumulates;
    return call;
  }

  // Outputs of `rows` rows of x from `first` on, by the engine from the weight in bf16 or, with
  // `multiprocessors`, by the kernel.
  std::vector<float> Outputs(int64_t first, int64_t rows, int multiprocessors) {
    multiprocessors_ = multiprocessors;
    Call call = MakeCall(x_);
    if (multiprocessors > 0) call.fp8 = &fp8_;
    TestMatrix y(kind_.dtype, rows, call.outputs(), rows % 2 * 8);
    Uniform uniform(3);
    if (kind_.accumulates) y.FillUniform(uniform, 8);
    EXPECT_EQ(Run(call, y, first, rows), cudaSuccess);
    y.Download();
    return y.values();
  }

  static TestMatrix MakeWeight(const Product8& kind) {
    TestMatrix weight(DType::kBF16, kind.out, kind.in, 0);
    Uniform uniform(43);
    for (int64_t r = 0; r < kind.out; ++r) {
      // Exponents of rows differ; gated, less, as a gate that is one or zero hides its bits.
      const float size = kind.gated ? 0.1f : std::ldexp(1.0f, static_cast<int>(r % 40) - 20);
      for (int64_t c = 0; c < kind.in; ++c) weight.At(r, c) = uniform(size);
    }
    return weight;
  }

  // By which all three widths of tiles are chosen, and blocks have one tile or many.
  static constexpr int kMultiprocessors[] = {1, 7, 132, 10000};
  int multiprocessors_ = 0;
  const Product8 kind_ = GetParam();
  Uniform uniform_{44};
  TestMatrix weight_ = MakeWeight(kind_);
  Fp8Weight fp8_{&weight_, kind_.out - kind_.tail};
  TestMatrix bias_{DType::kF32, 1, kind_.out, 0, uniform_, 2};
  TestMatrix x_{DType::kBF16, 1600, kind_.in, 8, uniform_, 1};
};

TEST_P(PrefillFp8GemmTest, MatchesFloat64) {
  for (const int64_t rows : {2, 65, 130, 260}) {
    TestMatrix x(DType::kBF16, rows, kind_.in, 8, uniform_, 1);
    Call call = MakeCall(x);
    call.fp8 = &fp8_;
    multiprocessors_ = 132;
    Expect(call, kind_.dtype, 8);
    if (HasFatalFailure()) return;
  }
}

TEST_P(PrefillFp8GemmTest, HasTheBitsOfTheWeightInBf16) {
  for (const int64_t rows :
       {2, 3, 16, 63, 64, 65, 127, 128, 129, 255, 256, 257, 385, 512, 700, 1024, 1536, 1600}) {
    const std::vector<float> want = Outputs(0, rows, 0);
    for (const int count : kMultiprocessors) {
      const std::vector<float> got = Outputs(0, rows, count);
      const auto differs = std::mismatch(got.begin(), got.end(), want.begin());
      const int64_t at = differs.first - got.begin(), out = static_cast<int64_t>(got.size()) / rows;
      ASSERT_TRUE(differs.first == got.end())
          << "row " << at / out << " of " << rows << ", output " << at % out << " of " << out
          << ", " << count << " multiprocessors: " << *differs.first << ", not " << *differs.second;
    }
  }
}

TEST_P(PrefillFp8GemmTest, BitsDependOnTheRowAlone) {
  if (kind_.accumulates) GTEST_SKIP() << "y's previous rows differ";
  const std::vector<float> want = Outputs(0, x_.rows(), 132);
  const int64_t out = static_cast<int64_t>(want.size()) / x_.rows();
  for (const int count : kMultiprocessors) {
    for (const int64_t rows : {1, 2, 7, 63, 65, 129, 257, 300, 700}) {
      const int64_t first = x_.rows() - rows;
      const std::vector<float> got = Outputs(first, rows, count);
      const auto differs = std::mismatch(got.begin(), got.end(), want.begin() + first * out);
      ASSERT_TRUE(differs.first == got.end())
          << "row " << (differs.first - got.begin()) / out << " of " << rows << ", " << count
          << " multiprocessors";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Weights, PrefillFp8GemmTest,
    ::testing::Values(Product8{"gated", 3072, 1536, 0, DType::kBF16, true},
                      Product8{"gated_ragged", 2000, 520, 0, DType::kBF16, true},
                      Product8{"gated_narrow", 144, 2056, 0, DType::kBF16, true},
                      Product8{"gated_least", 16, 8, 0, DType::kBF16, true},
                      Product8{"projection", 1568, 1024, 32, DType::kBF16},
                      Product8{"projection_biased", 1304, 1544, 145, DType::kBF16, false, false,
                               true},
                      Product8{"few_tiles", 776, 640, 0, DType::kF32},
                      Product8{"o", 1024, 1024, 0, DType::kF32, false, true},
                      Product8{"o_7b", 4096, 4096, 0, DType::kF32, false, true},
                      Product8{"down_7b", 4096, 11008, 0, DType::kF32, false, true},
                      Product8{"down_ragged", 1000, 2104, 0, DType::kF32, false, true},
                      Product8{"down_biased", 336, 264, 130, DType::kF32, false, true, true}),
    [](const auto& c) { return std::string(c.param.name); });

// Odd numbers of outputs and rows that begin anywhere.
TEST_F(LinearTest, PrefillRowsByCodesMatchFloat64WhereNothingIsAligned) {
  Uniform uniform(46);
  for (const int64_t out : {1, 7, 65, 129, 777}) {
    TestMatrix weight(DType::kBF16, out, 72, 0, uniform, 1);
    const Fp8Weight fp8(&weight, (out + 1) / 2);
    for (const int64_t rows : {3, 66}) {
      TestMatrix x(DType::kBF16, rows, 72, 8, uniform, 1);
      Call call{.in = &x, .weight = &weight, .fp8 = &fp8, .decode_rows = 0};
      Expect(call, DType::kBF16, 1);
      Expect(call, DType::kF32, 3);
      call.accumulate = true;
      Expect(call, DType::kF32, 1);
      if (HasFatalFailure()) return;
    }
  }
}

// The engine multiplies up to 1,536 rows by codes; more by the widened weight.
TEST_F(LinearTest, PrefillRowsByCodesOrWidenedHaveTheSameBits) {
  if (!HasClusterGemm()) GTEST_SKIP() << "no code for sm_90a, or no such device";
  constexpr int64_t kRows = 1537, kOut = 520, kIn = 264;
  Uniform uniform(45);
  TestMatrix weight(DType::kBF16, kOut, kIn, 0, uniform, 1);
  const Fp8Weight fp8(&weight, kOut - 8);
  TestMatrix x(DType::kBF16, kRows, kIn, 0, uniform, 1);
  TestMatrix all(DType::kBF16, kRows, kOut, 0), some(DType::kBF16, kRows, kOut, 0);
  const Call call{.in = &x, .weight = &weight, .fp8 = &fp8, .decode_rows = 0};
  ASSERT_EQ(Run(call, all), cudaSuccess);
  ASSERT_EQ(Run(call, some, 0, kRows - 1), cudaSuccess);
  all.Download();
  some.Download();
  for (int64_t r = 0; r < kRows - 1; ++r) {
    for (int64_t c = 0; c < kOut; ++c) ASSERT_EQ(some.At(r, c), all.At(r, c)) << r << " " << c;
  }
}

}  // namespace
}  // namespace fox::cuda::testing
