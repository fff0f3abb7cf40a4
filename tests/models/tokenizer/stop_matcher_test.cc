// StopMatcher: which string matches, what may still become one, and what a byte costs.
#include "models/tokenizer/stop_matcher.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <random>

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

// Strings of two letters overlap in every way.
TEST(StopMatcherTest, AgreesWithASearchOfTheWholeText) {
  std::mt19937 random(3);
  const auto letters = [&random](size_t count) {
    std::string text(count, ' ');
    for (char& c : text) c = static_cast<char>('a' + random() % 2);
    return text;
  };
  int found = 0;
  for (int round = 0; round < 2000; ++round) {
    Stops stops;
    for (size_t n = 1 + random() % 4; n > 0; --n) stops.push_back(letters(1 + random() % 6));
    StopMatcher matcher(stops);
    std::string text;
    for (char c : letters(30)) {
      text.push_back(c);
      size_t longest = 0, held = 0;
      for (const std::string& stop : stops) {
        if (text.ends_with(stop)) longest = std::max(longest, stop.size());
        for (size_t n = 1; n <= stop.size(); ++n) {
          if (text.ends_with(stop.substr(0, n))) held = std::max(held, n);
        }
      }
      const int match = matcher.Push(c);
      ASSERT_EQ(match < 0 ? 0 : stops[static_cast<size_t>(match)].size(), longest) << text;
      ASSERT_EQ(matcher.held(), held) << text;
      found += match >= 0;
    }
  }
  EXPECT_GT(found, 1000);
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
