// Norms and gates of rows, and their lookup, against the host.
#include "kernels/cuda/linear/row_transforms.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "tests/kernels/cuda/device_array.h"
#include "tests/kernels/cuda/test_matrix.h"

namespace fox::cuda::testing {
namespace {

// bf16 keeps 8 bits, so rounding to it changes a value by at most 2^-8 of itself. float32 carries
// sums of squares, rsqrt, exp, a division and a few products.
void ExpectNear(const TestMatrix& out, int64_t row, const std::vector<double>& want) {
  const double tolerance = 0x1p-8 + NormError(out.cols());
  for (int64_t c = 0; c < out.cols(); ++c) {
    const double w = want[static_cast<size_t>(c)];
    ASSERT_FALSE(std::isnan(out.At(row, c))) << "row " << row << " column " << c;
    ASSERT_LE(std::abs(out.At(row, c) - w), tolerance * std::abs(w) + 1e-37)
        << "row " << row << " column " << c << " of " << out.cols();
  }
}

TEST(NormRowsTest, MatchesFloat64) {
  for (const int64_t cols : {8, 64, 384, 1536, 2048, 2056, 4096, 9000}) {
    SCOPED_TRACE(::testing::Message() << cols << " columns");
    Uniform uniform(7);
    TestMatrix in(DType::kF32, 5, cols, 8, uniform, 4), weight(DType::kF32, 1, cols, 0, uniform, 2);
    TestMatrix out(DType::kBF16, 5, cols, 8);
    ASSERT_EQ(NormRows(in.view(), NormBy(weight), out.view(), nullptr), cudaSuccess);
    out.Download();
    for (int64_t r = 0; r < 5; ++r) ExpectNear(out, r, NormedRow(in, r, weight));
  }
}

// The sum of squares of 128 columns: fours of neighbours, then a binary tree.
float SumOfSquares(const TestMatrix& x, int64_t row, int64_t first) {
  float sums[32] = {};
  for (int64_t c = first; c < std::min(first + DeferredNorm::kSumCols, x.cols()); ++c) {
    float& sum = sums[(c - first) / 4];
    sum = std::fmaf(x.At(row, c), x.At(row, c), sum);
  }
  for (int half = 1; half < 32; half *= 2) {
    for (int i = 0; i < 32; i += 2 * half) sums[i] += sums[i + half];
  }
  return sums[0];
}

TEST(DeferNormTest, LeavesRowsAndSumsToTheBit) {
  for (const int64_t cols : {8, 200, 1536, 4096}) {
    SCOPED_TRACE(::testing::Message() << cols << " columns");
    constexpr int64_t kRows = 70;
    const int64_t sums = DeferredNorm::SumsOf(cols);
    Uniform uniform(5);
    TestMatrix in(DType::kF32, kRows, cols, 4, uniform, 4),
        weight(DType::kF32, 1, cols, 0, uniform, 2);
    TestMatrix out(DType::kBF16, kRows, cols, 8), squares(DType::kF32, kRows, sums, 0);
    ASSERT_EQ(DeferNorm(in.view(), NormBy(weight),
                        {out.view(), static_cast<float*>(squares.view().data)}, nullptr),
              cudaSuccess);
    out.Download();
    squares.Download();
    for (int64_t r = 0; r < kRows; ++r) {
      for (int64_t c = 0; c < cols; ++c) {
        const float want = static_cast<float>(BFloat16(in.At(r, c) * weight.At(0, c)));
        ASSERT_EQ(out.At(r, c), want) << r << " " << c;
      }
      for (int64_t i = 0; i < sums; ++i) {
        ASSERT_EQ(squares.At(r, i), SumOfSquares(in, r, i * DeferredNorm::kSumCols)) << r;
      }
    }
  }
}

TEST(GateRowsTest, MatchesFloat64) {
  for (const int64_t inner : {8, 72, 384, 3584}) {
    for (const Activation act : {Activation::kSilu, Activation::kSigmoid}) {
      Uniform uniform(9);
      TestMatrix y(DType::kBF16, 3, 2 * inner, 8, uniform, 4), out(DType::kBF16, 3, inner, 8);
      ASSERT_EQ(GateRows(y.view(), act, out.view(), nullptr), cudaSuccess) << static_cast<int>(act);
      out.Download();
      for (int64_t r = 0; r < 3; ++r) {
        std::vector<double> want;
        for (int64_t c = 0; c < inner; ++c) {
          want.push_back(Activated(y.At(r, c), act) * y.At(r, inner + c));
        }
        ExpectNear(out, r, want);
      }
    }
  }
}

// Extreme gates give 0 or the value, never NaN.
TEST(GateRowsTest, GatesSaturate) {
  TestMatrix y(DType::kBF16, 1, 16, 0);
  for (int64_t c = 0; c < 8; ++c) {
    y.At(0, c) = c % 2 == 0 ? -1000.0f : 1000.0f;
    y.At(0, 8 + c) = 3;
  }
  y.Upload();
  for (const Activation act : {Activation::kSigmoid, Activation::kSilu}) {
    TestMatrix out(DType::kBF16, 1, 8, 0);
    ASSERT_EQ(GateRows(y.view(), act, out.view(), nullptr), cudaSuccess) << static_cast<int>(act);
    out.Download();
    for (int64_t c = 0; c < 8; ++c) {
      const float want = c % 2 == 0 ? 0.0f : act == Activation::kSilu ? 3000.0f : 3.0f;
      EXPECT_NEAR(out.At(0, c), want, 0x1p-8 * want) << c;
    }
  }
}

TEST(ConvertRowsTest, Rounds) {
  Uniform uniform(4);
  TestMatrix in(DType::kF32, 33, 200, 0, uniform, 3), out(DType::kBF16, 33, 200, 0);
  ASSERT_EQ(ConvertRows(in.view(), out.view(), nullptr), cudaSuccess);
  out.Download();
  for (int64_t r = 0; r < 33; ++r) {
    for (int64_t c = 0; c < 200; ++c) {
      ASSERT_EQ(out.At(r, c), static_cast<float>(BFloat16(in.At(r, c))))
          << "row " << r << " column " << c;
    }
  }
}

// Three sequences of 2, 1 and 4 rows, the second one padding. Slot 5 drew an id past the end.
class EmbedTest : public ::testing::Test {
 protected:
  static constexpr int64_t kVocabulary = 11;
  EmbedTest() {
    batch_.num_seqs = 3;
    batch_.num_rows = 7;
    batch_.token_ids = ids_.data();
    batch_.slot = slot_.data();
    batch_.row_begin = row_begin_.data();
    batch_.sampled_tokens = sampled_.data();
  }

  // Exact in every dtype; the first column tells rows apart, the others columns.
  static float Value(int64_t id, int64_t c) {
    return static_cast<float>(c == 0 ? 32 * id : c % 97);
  }

  void ExpectRows(const TestMatrix& out, const std::vector<int64_t>& ids) {
    for (int64_t r = 0; r < out.rows(); ++r) {
      for (int64_t c = 0; c < out.cols(); ++c) {
        ASSERT_EQ(out.At(r, c), Value(ids[static_cast<size_t>(r)], c)) << r << " " << c;
      }
    }
  }

  DeviceArray<int32_t> ids_{
      std::vector<int32_t>{3, kLastSampledToken, kLastSampledToken, 40, -9, 10, kLastSampledToken}};
  DeviceArray<int32_t> slot_{std::vector<int32_t>{2, -1, 5}};
  DeviceArray<int64_t> row_begin_{std::vector<int64_t>{0, 2, 3, 7}};
  DeviceArray<int32_t> sampled_{std::vector<int32_t>{8, 8, 7, 8, 8, 1000}};
  BatchView batch_;
};

TEST_F(EmbedTest, ReplacesSampledTokensAndClamps) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const int64_t cols : {8, 384, 2056}) {
      SCOPED_TRACE(::testing::Message() << NameOf(dtype) << ", " << cols << " columns");
      TestMatrix table(dtype, kVocabulary, cols, 8);
      for (int64_t r = 0; r < kVocabulary; ++r) {
        for (int64_t c = 0; c < cols; ++c) table.At(r, c) = Value(r, c);
      }
      table.Upload();
      TestMatrix out(DType::kF32, 7, cols, 4);
      batch_.sampled_tokens = sampled_.data();
      ASSERT_EQ(Embed(batch_, table.view(), out.view(), nullptr), cudaSuccess);
      out.Download();
      ExpectRows(out, {3, 7, 0, 10, 0, 10, 10});
      batch_.sampled_tokens = nullptr;
      ASSERT_EQ(Embed(batch_, table.view(), out.view(), nullptr), cudaSuccess);
      out.Download();
      ExpectRows(out, {3, 0, 0, 10, 0, 10, 0});
    }
  }
}

TEST(GatherRowsTest, CopiesRows) {
  Uniform uniform(1);
  TestMatrix in(DType::kF32, 9, 1544, 4, uniform, 1);
  TestMatrix out(DType::kF32, 4, 1544, 8);
  const std::vector<int64_t> rows = {8, 0, 3, 3};
  const DeviceArray<int64_t> device_rows(rows);
  ASSERT_EQ(GatherRows(in.view(), device_rows.data(), out.view(), nullptr), cudaSuccess);
  out.Download();
  for (int64_t r = 0; r < 4; ++r) {
    for (int64_t c = 0; c < 1544; ++c) {
      ASSERT_EQ(out.At(r, c), in.At(rows[static_cast<size_t>(r)], c))
          << "row " << r << " column " << c;
    }
  }
}

}  // namespace
}  // namespace fox::cuda::testing
