// The arithmetic of sampling: bits that hosts and devices must have in common, the distribution of
// the race's times down to the last word, and weights against float64.
#include "kernels/core/sampling_arithmetic.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>
#include <tuple>

#include "tests/kernels/sampling_digest.h"

namespace fox {
namespace {

constexpr uint64_t kWords = uint64_t{1} << 32;
constexpr double kLogOf2Double = 0.6931471805599453;

// The exact time for u = (w + 1/2) / 2^32, from the smaller of u and 1 - u, which float64 can
// resolve.
double ExactTime(uint32_t word) {
  const double half_up = static_cast<double>(word) + 0.5;
  return word < kWords / 2 ? -std::log1p(-half_up * 0x1p-32)
                           : -std::log((static_cast<double>(kWords) - half_up) * 0x1p-32);
}

TEST(SamplingArithmeticTest, BitsAreThoseOfSingleRoundings) {
  SamplingDigest digest;
  for (uint32_t i = 0; i < SamplingDigest::kCount; ++i) digest.Add(SamplingDigest::Of(i));
  EXPECT_EQ(digest.value(), SamplingDigest::kExpected);
}

TEST(SamplingArithmeticTest, TimesAndNoiseMatchFloat64) {
  std::vector<uint32_t> words = {0, 1, 0x7fffffff, 0x80000000, 0xfffffffe, 0xffffffff};
  for (uint32_t i = 0; i < 2000000; ++i) words.push_back(i * 2654435761u >> (i % 29));
  for (const uint32_t word : words) {
    const double exact = ExactTime(word);
    const double time = static_cast<double>(RaceTime(word)) * kLogOf2Double;
    // Minimax error 1.7e-7, and about three roundings of 2^-24.
    ASSERT_NEAR(time / exact, 1.0, 0x1.0p-20) << word;
    // The second logarithm has the same relative error near 0, and adds up to 33 with a rounding.
    const double noise = static_cast<double>(RaceNoise(word, RaceScale(1.0f)));
    ASSERT_NEAR(noise, -std::log(exact) - std::log(1 / kLogOf2Double), 0x1.0p-18) << word;
  }
}

TEST(SamplingArithmeticTest, NoTimeIsZeroOrInfinite) {
  EXPECT_NEAR(RaceTime(0) * kLogOf2Double, 0x1.0p-33, 0x1.0p-53);
  EXPECT_NEAR(RaceTime(0xffffffff) * kLogOf2Double, 33 * kLogOf2Double, 1e-5);
  EXPECT_TRUE(std::isfinite(RaceNoise(0, RaceScale(100))));
}

TEST(SamplingArithmeticTest, NoTwoTokensShareAWord) {
  std::set<std::tuple<uint32_t, uint32_t, uint32_t, uint32_t>> seen;
  for (const uint64_t seed : {uint64_t{0}, uint64_t{1}, uint64_t{1} << 32}) {
    for (const uint64_t position : {uint64_t{0}, uint64_t{1}, uint64_t{1} << 32}) {
      for (int32_t block = 0; block < 2000; ++block) {
        const PhiloxCounter words = RaceWords(seed, position, block);
        EXPECT_TRUE(seen.emplace(words.x0, words.x1, words.x2, words.x3).second)
            << seed << ' ' << position << ' ' << block;
      }
    }
  }
}

TEST(SamplingArithmeticTest, KeysRankScoresThenLowerIds) {
  constexpr double kLargest = std::numeric_limits<float>::max();
  const double scores[] = {-kLargest, -1e30,         -1,   -1e-30,  0, 1e-30,
                           1,         1 + 0x1.0p-30, 1e30, kLargest};
  for (const int64_t vocabulary : {1, 2, 3, 50277}) {
    const int bits = IdBits(vocabulary);
    EXPECT_GE(int64_t{1} << bits, vocabulary);
    uint64_t last = 0;
    for (const double score : scores) {
      SCOPED_TRACE(::testing::Message() << vocabulary << " ids, score " << score);
      const int32_t highest_id = static_cast<int32_t>(vocabulary) - 1;
      EXPECT_GT(RaceKey(score, highest_id, bits), last) << score;
      last = RaceKey(score, 0, bits);
      EXPECT_GE(last, RaceKey(score, highest_id, bits));
      EXPECT_EQ(RaceId(last, bits), 0);
      EXPECT_EQ(RaceId(RaceKey(score, highest_id, bits), bits), highest_id);
      EXPECT_NE(last, ~uint64_t{0});
    }
  }
}

TEST(SamplingArithmeticTest, SumsOfWeightsNeverOverflow) {
  for (int64_t vocabulary = 1; vocabulary <= int64_t{1} << 30; vocabulary += 1 + vocabulary / 3) {
    SCOPED_TRACE(::testing::Message() << vocabulary);
    const uint64_t one = FixedPointWeight(1, FixedPointOne(vocabulary));
    EXPECT_EQ(static_cast<float>(one), FixedPointOne(vocabulary));
    EXPECT_LE(one, (uint64_t{1} << 62) / static_cast<uint64_t>(vocabulary));
  }
}

TEST(SamplingArithmeticTest, TopPSumIsTheNextInteger) {
  EXPECT_EQ(TopPSum(0.5f, 10), 5u);
  EXPECT_EQ(TopPSum(0.5f, 11), 6u);
  EXPECT_EQ(TopPSum(1e-45f, 10), 1u);
  const uint64_t most = (uint64_t{1} << 62) + 1;
  EXPECT_LE(TopPSum(std::nextafter(1.0f, 0.0f), most), most);
}

TEST(SamplingArithmeticTest, MinPFloorIsWhereTheWeightIsMinP) {
  EXPECT_EQ(MinPFloor(1, 0.7f, 3.3f), 3.3f);
  EXPECT_EQ(MinPFloor(0.25f, 1, 0), static_cast<float>(-2 * kLogOf2Double));
  for (const float min_p : {1e-30f, 1e-3f, 0.02f, 0.3f, 0.9f}) {
    SCOPED_TRACE(::testing::Message() << min_p);
    const double exact = 5 + 1.5 * std::log(static_cast<double>(min_p));
    EXPECT_NEAR(static_cast<double>(MinPFloor(min_p, 1.5f, 5)), exact,
                (std::abs(exact) + 5) * 0x1.0p-20);
  }
  const float lowest = std::numeric_limits<float>::lowest();
  EXPECT_EQ(MinPFloor(1e-45f, 100, lowest), lowest);
}

}  // namespace
}  // namespace fox
