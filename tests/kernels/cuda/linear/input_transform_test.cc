// TransformRows against the host.
#include "kernels/cuda/linear/input_transform.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "tests/kernels/cuda/test_matrix.h"

namespace fox::cuda {
namespace {

using testing::TestMatrix;
using testing::TransformCase;
using testing::Uniform;
using Kind = InputTransform::Kind;

void ExpectTransform(DType dtype, int64_t rows, int64_t cols, const TransformCase& t) {
  Uniform uniform(static_cast<uint64_t>(rows * 10000 + cols));
  TestMatrix in(dtype, rows, cols, 8);
  in.FillUniform(uniform, 4);
  TestMatrix out(DType::kBF16, rows, t.kind == Kind::kGatedAct ? cols / 2 : cols, 8);
  ASSERT_EQ(TransformRows(in.view(), t.params(), out.view(), nullptr), cudaSuccess);
  out.Download();
  // bf16 keeps 8 bits, so rounding to it changes a value by at most 2^-8 of itself.
  const double tolerance = 0x1p-8 + testing::TransformError(cols);
  for (int64_t r = 0; r < rows; ++r) {
    const std::vector<double> want = testing::TransformedRow(t, in, r);
    for (int64_t c = 0; c < out.cols(); ++c) {
      const double w = want[static_cast<size_t>(c)];
      ASSERT_FALSE(std::isnan(out.At(r, c)));
      ASSERT_LE(std::abs(out.At(r, c) - w), tolerance * std::abs(w) + 1e-37)
          << "row " << r << " column " << c << " of " << rows << " x " << cols;
    }
  }
}

TEST(TransformRowsTest, RmsNorm) {
  for (const int64_t cols : {8, 64, 384, 1536, 2056, 4096, 9000}) {
    Uniform uniform(7);
    TestMatrix weight(DType::kF32, 1, cols, 0);
    weight.FillUniform(uniform, 2);
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      for (const TestMatrix* w : {&weight, static_cast<TestMatrix*>(nullptr)}) {
        ExpectTransform(dtype, 5, cols, {.kind = Kind::kRmsNorm, .weight = w});
      }
    }
  }
}

// The same values in bf16 and in float32 rows, padded by `padding` columns.
struct BothTypes {
  TestMatrix narrow, wide;

  BothTypes(int64_t rows, int64_t cols, int64_t padding, uint64_t seed)
      : narrow(DType::kBF16, rows, cols, padding), wide(DType::kF32, rows, cols, padding) {
    Uniform uniform(seed);
    narrow.FillUniform(uniform, 4);
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < cols; ++c) wide.At(r, c) = narrow.At(r, c);
    }
    wide.Upload();
  }
};

void ExpectTypesAgree(const BothTypes& in, const InputTransform& t, int64_t out_cols) {
  const int64_t rows = in.narrow.rows();
  TestMatrix of_narrow(DType::kBF16, rows, out_cols, 0), of_wide(DType::kBF16, rows, out_cols, 0);
  ASSERT_EQ(TransformRows(in.narrow.view(), t, of_narrow.view(), nullptr), cudaSuccess);
  ASSERT_EQ(TransformRows(in.wide.view(), t, of_wide.view(), nullptr), cudaSuccess);
  of_narrow.Download();
  of_wide.Download();
  ASSERT_EQ(of_narrow.host(), of_wide.host()) << out_cols;
}

// A row's squares are added in one order whoever adds them: float32 rows are the work of a warp, or
// of a block where they are wide, bf16 rows that of a block.
TEST(TransformRowsTest, NormsHaveOneOrderOfSums) {
  for (const int64_t cols : {8, 200, 1536, 2048, 2056, 9000}) {
    const BothTypes in(40, cols, 8, 9);
    ExpectTypesAgree(in, TransformCase{.kind = Kind::kRmsNorm}.params(), cols);
  }
}

// Gated rows have the same bits from the warps that take bf16 rows and from the block that takes
// float32 ones, which computes as the product of few rows does.
TEST(TransformRowsTest, GatedRowsHaveOneArithmetic) {
  for (const int64_t cols : {16, 144, 768, 1552, 7168}) {
    const BothTypes in(40, cols, 8, 10);
    for (const Activation act : {Activation::kSilu, Activation::kSigmoid}) {
      ExpectTypesAgree(in, TransformCase{.kind = Kind::kGatedAct, .act = act}.params(), cols / 2);
    }
  }
}

TEST(TransformRowsTest, GatedActAndConversion) {
  for (const int64_t cols : {16, 144, 768, 7168}) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      ExpectTransform(dtype, 3, cols, {.kind = Kind::kGatedAct, .act = Activation::kSilu});
      ExpectTransform(dtype, 3, cols, {.kind = Kind::kGatedAct, .act = Activation::kSigmoid});
      ExpectTransform(dtype, 3, cols, {.kind = Kind::kNone});
    }
  }
}

// Extreme gates give 0 or the value, never NaN.
TEST(TransformRowsTest, GatesSaturate) {
  TestMatrix in(DType::kF32, 1, 16, 0);
  for (int64_t c = 0; c < 8; ++c) {
    in.At(0, c) = c % 2 == 0 ? -1000.0f : 1000.0f;
    in.At(0, 8 + c) = 3;
  }
  in.Upload();
  for (const Activation act : {Activation::kSigmoid, Activation::kSilu}) {
    TestMatrix out(DType::kBF16, 1, 8, 0);
    InputTransform t;
    t.kind = Kind::kGatedAct;
    t.act = act;
    ASSERT_EQ(TransformRows(in.view(), t, out.view(), nullptr), cudaSuccess);
    out.Download();
    for (int64_t c = 0; c < 8; ++c) {
      const float want = c % 2 == 0 ? 0.0f : act == Activation::kSilu ? 3000.0f : 3.0f;
      EXPECT_NEAR(out.At(0, c), want, 0x1p-8 * want) << c;
    }
  }
}

// A row gives the same bits in any batch, and no rows are no work.
TEST(TransformRowsTest, RowsAreIndependent) {
  Uniform uniform(3);
  TestMatrix in(DType::kF32, 1000, 1536, 0);
  in.FillUniform(uniform, 3);
  const InputTransform t = TransformCase{.kind = Kind::kRmsNorm}.params();
  TestMatrix all(DType::kBF16, 1000, 1536, 0), one(DType::kBF16, 1, 1536, 0);
  ASSERT_EQ(TransformRows(in.view(), t, all.view(), nullptr), cudaSuccess);
  ASSERT_EQ(TransformRows(in.view().Rows(777, 1), t, one.view(), nullptr), cudaSuccess);
  ASSERT_EQ(TransformRows(in.view().Rows(0, 0), t, one.view().Rows(0, 0), nullptr), cudaSuccess);
  all.Download();
  one.Download();
  for (int64_t c = 0; c < 1536; ++c) ASSERT_EQ(all.At(777, c), one.At(0, c));
}

}  // namespace
}  // namespace fox::cuda
