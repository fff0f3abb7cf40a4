// Rounding of weights to 8 bits against the format's own definition: a table of all codes; and the
// places of the codes in a GPU's words.
#include "kernels/core/e4m3.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "gtest/gtest.h"
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

// Lane t of a product has columns 2t, 2t + 1, 2t + 8 and 2t + 9 of 16 in one word; zeros follow the
// last column.
TEST(E4M3Test, WordsOnAGpuHoldTheCodesOfALane) {
  constexpr int64_t kRows = 3;
  for (const int64_t cols : {8, 40, 520, 576, 1536}) {
    SCOPED_TRACE(::testing::Message() << cols << " columns");
    std::vector<float> numbers(static_cast<size_t>(kRows * cols));
    for (size_t i = 0; i < numbers.size(); ++i) {
      const auto code = static_cast<int>(i % static_cast<size_t>(cols) == 0 ? kLargest : i % 251);
      numbers[i] = static_cast<float>(Definition((code & 0x7f) == 0x7f ? 0x80 : code));
    }
    const cuda::Fp8Rows packed =
        cuda::EncodeFp8Rows({numbers.data(), DType::kF32, kRows, cols, cols});
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

}  // namespace
}  // namespace fox
