// StopMatcher: which string matches, what may still become one, and what a byte costs.
#include "models/tokenizer/stop_matcher.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>

namespace fox {
namespace {

using Stops = std::vector<std::string>;

// What Push returned for each byte.
std::vector<int> Matches(const Stops& stops, const std::string& text) {
  StopMatcher matcher(stops);
  std::vector<int> matches;
  for (char c : text) matches.push_back(matcher.Push(c));
  return matches;
}

TEST(StopMatcherTest, TheLongestOfThoseThatEndTogether) {
  EXPECT_EQ(Matches({"b", "cab", "ab"}, "cab").back(), 1);
  EXPECT_EQ(Matches({"b", "cab", "ab"}, "xab").back(), 2);
  EXPECT_EQ(Matches({"b", "cab", "ab"}, "xb").back(), 0);
}

TEST(StopMatcherTest, ARepeatedStringCountsAsItsFirst) {
  EXPECT_EQ(Matches({"x", "ab", "ab"}, "ab").back(), 1);
}

TEST(StopMatcherTest, GoesOnAfterAMatch) {
  EXPECT_EQ(Matches({"aa"}, "aaabaa"), (std::vector<int>{-1, 0, 0, -1, -1, 0}));
}

TEST(StopMatcherTest, EveryByteIsAByte) {
  const Stops stops = {std::string("\0\xff", 2), "\x80"};
  EXPECT_EQ(Matches(stops, std::string("\0\xff\x80", 3)), (std::vector<int>{-1, 0, 1}));
}

TEST(StopMatcherTest, WithoutStringsNothingMatchesAndNothingIsHeld) {
  StopMatcher matcher({});
  EXPECT_EQ(matcher.Push('a'), -1);
  EXPECT_EQ(matcher.held(), 0u);
}

TEST(StopMatcherTest, CostDoesNotGrowWithTheNumberOfStrings) {
  // Strings that share long beginnings make a naive matcher compare each of them at each byte.
  auto seconds = [](int count) {
    std::vector<std::string> stops;
    stops.reserve(16);
    for (int i = 0; i < count; ++i) {
      stops.push_back(std::string(200, 'a') + static_cast<char>('b' + i));
    }
    StopMatcher matcher(stops);
    double best = 1e9;
    for (int repeat = 0; repeat < 5; ++repeat) {
      const auto start = std::chrono::steady_clock::now();
      int found = 0;
      for (int i = 0; i < 2000000; ++i) found += matcher.Push('a') >= 0;
      EXPECT_EQ(found, 0);
      best = std::min(
          best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    }
    return best;
  };
  EXPECT_LT(seconds(16), 8 * seconds(1) + 0.05);
}

}  // namespace
}  // namespace fox
