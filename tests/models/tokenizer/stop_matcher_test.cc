// What a byte costs StopMatcher. Which string matches, and what may still become one, against a
// search of the whole text: tests/fuzz/models/stop_matcher_fuzzer.cc.
#include "models/tokenizer/stop_matcher.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>

namespace fox {
namespace {

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
