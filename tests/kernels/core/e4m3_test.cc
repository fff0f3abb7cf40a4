// Rounding of weights: to e4m3 against the format's own definition, a table of all codes, and the
// places of the codes in a GPU's words; to blocks against the package gguf.
#include "kernels/core/e4m3.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/core/weight_format.h"
#include "kernels/cuda/linear/fp8_rows.h"

namespace fox {
namespace {

constexpr uint8_t kLargest = 0x7e;

// sign * 2^(e - 7) * 1.f, subnormals sign * 2^-6 * 0.f: OCP 8-bit floating point, E4M3.
double Definition(int code) {
  const int exponent = code >> 3 & 15, fraction = code & 7;
  const double magnitude =
      exponent == 0 ? std::ldexp(fraction / 8.0, -6) : std::ldexp(1 + fraction / 8.0, exponent - 7);
  return code < 0x80 ? magnitude : -magnitude;
}

double Value(uint8_t code, int exponent) {
  return static_cast<double>(static_cast<float>(E4M3Value(code, exponent)));
}

TEST(E4M3Test, EveryCodeIsExactInBf16AtEveryExponent) {
  EXPECT_EQ(Definition(kLargest), 448);
  for (int code = 0; code < 256; ++code) {
    if ((code & 0x7f) > kLargest) continue;  // NaN
    for (int exponent = -117; exponent <= 119; ++exponent) {
      const auto byte = static_cast<uint8_t>(code);
      ASSERT_EQ(Value(byte, exponent), std::ldexp(Definition(code), exponent)) << code;
      ASSERT_EQ(std::signbit(Value(byte, exponent)), code >= 0x80) << code;
    }
  }
}

// The numbers around each code and around the middle between it and the next one.
TEST(E4M3Test, RoundsToTheNearestTiesToEven) {
  const float above = std::numeric_limits<float>::infinity();
  for (int code = 0; code < kLargest; ++code) {
    const auto low = static_cast<float>(Definition(code));
    const auto high = static_cast<float>(Definition(code + 1));
    const float middle = (low + high) / 2;
    for (const auto& [value, wanted] : {std::pair{low, code},
                                        {std::nextafter(low, above), code},
                                        {std::nextafter(middle, 0.0f), code},
                                        {middle, code % 2 == 0 ? code : code + 1},
                                        {std::nextafter(middle, above), code + 1},
                                        {std::nextafter(high, 0.0f), code + 1}}) {
      EXPECT_EQ(NearestE4M3(value), wanted) << value;
      EXPECT_EQ(NearestE4M3(-value), wanted | 0x80) << value;
    }
  }
  EXPECT_EQ(NearestE4M3(1e-40f), 0);
  EXPECT_EQ(NearestE4M3(1e30f), kLargest);
}

TEST(E4M3Test, TheLargestMagnitudeOfARowChoosesTheExponent) {
  const float least = std::numeric_limits<float>::denorm_min();
  for (const auto& [largest, exponent] : {std::pair{448.0f, 0},
                                          {std::nextafter(448.0f, 449.0f), 1},
                                          {224.5f, 0},
                                          {224.0f, -1},
                                          {0.1f, -12},
                                          {-0.1f, -12},
                                          {0.0f, -117},
                                          {0x1p-140f, -117},
                                          {least, -117},
                                          {448 * 0x1p119f, 119},
                                          {std::numeric_limits<float>::max(), 119},
                                          {HUGE_VALF, kNoExponent},
                                          {std::nanf(""), kNoExponent}}) {
    SCOPED_TRACE(::testing::Message() << largest);
    const float row[] = {largest / 2, largest, 0, -largest / 1024};
    uint8_t codes[4];
    EXPECT_EQ(EncodeE4M3(row, 4, codes), exponent) << largest;
    const bool finite = exponent != kNoExponent;
    EXPECT_EQ(std::isfinite(static_cast<float>(E4M3Value(codes[1], exponent))), finite);
  }
}

// Rows of all sizes and spreads; each number becomes the nearest one, and rounded rows stay.
TEST(E4M3Test, RoundsRowsOnce) {
  std::mt19937_64 rng(5);
  std::normal_distribution<float> normal;
  for (int test = 0; test < 300; ++test) {
    SCOPED_TRACE(::testing::Message() << "row " << test);
    std::vector<float> row(1 + rng() % 100);
    const float spread = static_cast<float>(rng() % 12);
    const int size = static_cast<int>(rng() % 200) - 100;
    for (float& x : row) x = std::ldexp(normal(rng) * std::exp(spread * normal(rng)), size);
    std::vector<uint8_t> codes(row.size()), again(row.size());
    const auto count = static_cast<int64_t>(row.size());
    const int exponent = EncodeE4M3(row.data(), count, codes.data());
    std::vector<float> rounded(row.size());
    for (size_t i = 0; i < row.size(); ++i) {
      rounded[i] = static_cast<float>(E4M3Value(codes[i], exponent));
      const double error = std::abs(static_cast<double>(row[i]) - rounded[i]);
      for (int code = 0; code < 256; ++code) {
        if ((code & 0x7f) > kLargest) continue;
        const double other = std::ldexp(Definition(code), exponent);
        ASSERT_LE(error, std::abs(static_cast<double>(row[i]) - other)) << row[i];
      }
    }
    const int second = EncodeE4M3(rounded.data(), count, again.data());
    for (size_t i = 0; i < row.size(); ++i) {
      ASSERT_EQ(static_cast<float>(E4M3Value(again[i], second)), rounded[i]) << "element " << i;
    }
  }
}

TEST(E4M3Test, RowsHaveTheSameCodesByOneThreadAndByMany) {
  constexpr int64_t kRows = 70, kCols = 300;
  static_assert(kRows * kCols > kParallelElements);
  std::vector<float> numbers(static_cast<size_t>(kRows * kCols));
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  for (float& x : numbers) x = std::ldexp(normal(random), static_cast<int>(random() % 20));
  const MatrixView rows{numbers.data(), DType::kF32, kRows, kCols, kCols};
  ThreadPool one(1), many(5);
  const cuda::Fp8Rows want = cuda::EncodeFp8Rows(rows, one), got = cuda::EncodeFp8Rows(rows, many);
  EXPECT_EQ(got.codes, want.codes);
  EXPECT_EQ(got.scales, want.scales);
}

// Lane t of a product has columns 2t, 2t + 1, 2t + 8 and 2t + 9 of 16 in one word; zeros follow the
// last column.
TEST(E4M3Test, WordsOnAGpuHoldTheCodesOfALane) {
  constexpr int64_t kRows = 3;
  ThreadPool pool(1);
  for (const int64_t cols : {8, 40, 520, 576, 1536}) {
    SCOPED_TRACE(::testing::Message() << cols << " columns");
    std::vector<float> numbers(static_cast<size_t>(kRows * cols));
    for (size_t i = 0; i < numbers.size(); ++i) {
      const auto code = static_cast<int>(i % static_cast<size_t>(cols) == 0 ? kLargest : i % 251);
      numbers[i] = static_cast<float>(Definition((code & 0x7f) == 0x7f ? 0x80 : code));
    }
    const cuda::Fp8Rows packed =
        cuda::EncodeFp8Rows({numbers.data(), DType::kF32, kRows, cols, cols}, pool);
    EXPECT_EQ(packed.scales, std::vector<float>(kRows, 1));
    const int64_t stride = (cols + 127) / 128 * 128;
    ASSERT_EQ(packed.codes.size(), static_cast<size_t>(kRows * stride));
    for (int64_t i = 0; i < kRows * stride; ++i) {
      const int64_t row = i / stride, t = i % 16 / 4, of_lane = i % 4;
      const int64_t col = i % stride / 16 * 16 + 2 * t + of_lane % 2 + of_lane / 2 * 8;
      uint32_t word = 0;
      std::memcpy(&word, packed.codes.data() + i / 4 * 4, sizeof(word));
      BFloat16 small{};
      small.bits = static_cast<uint16_t>(cuda::Fp8Pair(word, of_lane >= 2) >> of_lane % 2 * 16);
      const float want = col < cols ? numbers[static_cast<size_t>(row * cols + col)] : 0;
      const float got = static_cast<float>(small) * 0x1p120f;
      ASSERT_EQ(got, want) << row << " " << col << " of " << cols;
      ASSERT_EQ(std::signbit(got), std::signbit(want)) << row << " " << col << " of " << cols;
    }
  }
}

// gguf.quants.quantize of the package gguf 0.17: the half-precision scale and the codes.
TEST(WeightFormatTest, BlocksAreGgufs) {
  const float block[32] = {0,    60, -55,  -178, -91,  308,  12,  268,  -98,  -124, 98,
                           71,   21, -186, -6,   139,  -269, -92, -380, -258, -368, -47,
                           -253, 54, 31,   -37,  -503, -108, -10, 23,   -306, -96};
  const std::vector<int> q8 = {0,   15, -14, -45, -23,  78,  3,   68,  -25, -31, 25,
                               18,  5,  -47, -2,  35,   -68, -23, -96, -65, -93, -12,
                               -64, 14, 8,   -9,  -127, -27, -3,  6,   -77, -24};
  const std::vector<int> q4 = {0,  1,  -1, -3, -1, 5,  0,  4, -2, -2, 2,  1,  0, -3, 0,  2,
                               -4, -1, -6, -4, -6, -1, -4, 1, 0,  -1, -8, -2, 0, 0,  -5, -2};
  int8_t codes[32];
  EXPECT_EQ(RoundBlock(WeightFormat::kQ8, block, codes), 0x43ec);
  EXPECT_EQ(std::vector<int>(codes, codes + 32), q8);
  EXPECT_EQ(RoundBlock(WeightFormat::kQ4, block, codes), 0x53dc);
  EXPECT_EQ(std::vector<int>(codes, codes + 32), q4);
}

TEST(WeightFormatTest, RowsAreRoundedOnceInBlocksWhoseLastMayBeShort) {
  std::mt19937_64 rng(1);
  for (const WeightFormat format : {WeightFormat::kQ8, WeightFormat::kQ4}) {
    for (const float size :
         {1e-9F, 1e-5F, 1.0F, 1e4F}) {  // scales below half precision's range, too
      SCOPED_TRACE(::testing::Message() << static_cast<int>(format) << ", " << size);
      std::normal_distribution<float> normal(0, size);
      std::vector<float> row(77);
      for (float& x : row) x = normal(rng);
      std::fill_n(row.begin() + 32, 32, 0.0F);
      std::vector<float> rounded = row, again;
      RoundRow(format, rounded.data(), 77);
      const float step = format == WeightFormat::kQ8 ? 1.0F / 127 : 1.0F / 8;
      for (size_t first : {0u, 32u, 64u}) {
        const size_t end = std::min<size_t>(first + 32, 77);
        float largest = 0;
        for (size_t i = first; i < end; ++i) largest = std::max(largest, std::abs(row[i]));
        // Half a step, a whole one beyond code 7 of Q4_0, and the rounding of the scale.
        const float half = format == WeightFormat::kQ8 ? 0.5F : 1.0F;
        const float scale_rounding = std::max(largest * step * 0x1p-11F, 0x1p-25F);
        for (size_t i = first; i < end; ++i) {
          EXPECT_NEAR(rounded[i], row[i], half * step * largest * 1.001F + 127 * scale_rounding)
              << i;
        }
      }
      again = rounded;
      RoundRow(format, again.data(), 77);
      EXPECT_EQ(again, rounded);
    }
  }
}

TEST(WeightFormatTest, HalvesAreNearest) {
  for (uint32_t bits = 0; bits < 0x7c00; ++bits) {
    const float value = HalfToFloat(static_cast<uint16_t>(bits));
    const float next = HalfToFloat(static_cast<uint16_t>(bits + 1));
    ASSERT_EQ(FloatToHalf(value), bits) << bits;
    ASSERT_EQ(FloatToHalf(-value), bits | 0x8000u) << bits;
    if (bits == 0x7bff) break;
    const float middle = (value + next) / 2;  // exact
    ASSERT_EQ(FloatToHalf(middle), bits + bits % 2) << bits;
    ASSERT_EQ(FloatToHalf(std::nextafter(middle, 0.0F)), bits) << bits;
    ASSERT_EQ(FloatToHalf(std::nextafter(middle, next)), bits + 1) << bits;
  }
  for (const float beyond : {65520.0F, 1e9F}) EXPECT_EQ(FloatToHalf(-beyond), 0xfbff) << beyond;
}

}  // namespace
}  // namespace fox
