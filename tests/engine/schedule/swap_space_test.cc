// SwapSpace: ranges do not overlap, the first gap that is large enough is taken, nothing is lost.
#include "engine/schedule/swap_space.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace fox {
namespace {

TEST(SwapSpaceTest, TheFirstGapThatIsLargeEnough) {
  SwapSpace space(100);
  const SwapRange a = *space.Take(30), b = *space.Take(30), c = *space.Take(30);
  EXPECT_EQ(space.used(), 90);
  EXPECT_FALSE(space.Take(11));
  EXPECT_EQ(space.Take(10)->begin, 90);
  space.Give(a);
  space.Give(c);
  EXPECT_FALSE(space.Take(31));  // 30 and 30, but not together
  EXPECT_EQ(space.Take(20)->begin, 0);
  EXPECT_EQ(space.Take(11)->begin, 60);
  EXPECT_EQ(space.Take(10)->begin, 20);
  space.Give(b);
  EXPECT_EQ(space.Take(30)->begin, 30);
}

TEST(SwapSpaceTest, TheEndOfARangeMayBeGivenBack) {
  SwapSpace space(100);
  SwapRange range = *space.Take(100);
  space.Trim(&range, 40);
  EXPECT_EQ(range.bytes, 40);
  EXPECT_EQ(space.used(), 40);
  EXPECT_EQ(space.Take(60)->begin, 40);
  space.Give(range);
  EXPECT_EQ(space.used(), 60);
  EXPECT_EQ(space.Take(40)->begin, 0);
}

TEST(SwapSpaceTest, NoSpaceAtAll) {
  SwapSpace space(0);
  EXPECT_FALSE(space.Take(1));
  EXPECT_EQ(space.used(), 0);
}

TEST(SwapSpaceTest, RangesNeverOverlap) {
  std::mt19937_64 rng(1);
  SwapSpace space(1000);
  std::vector<SwapRange> taken;
  for (int i = 0; i < 20000; ++i) {
    const auto bytes = static_cast<int64_t>(1 + rng() % 200);
    if (rng() % 2 == 0) {
      if (const auto range = space.Take(bytes)) {
        for (const SwapRange& other : taken) {
          EXPECT_TRUE(range->begin + range->bytes <= other.begin ||
                      other.begin + other.bytes <= range->begin);
        }
        EXPECT_TRUE(range->begin >= 0 && range->begin + range->bytes <= 1000);
        taken.push_back(*range);
      }
    } else if (!taken.empty()) {
      std::swap(taken[rng() % taken.size()], taken.back());
      if (rng() % 2 == 0) {
        space.Trim(&taken.back(), std::min(bytes, taken.back().bytes));
      } else {
        space.Give(taken.back());
        taken.pop_back();
      }
    }
    int64_t used = 0;
    for (const SwapRange& range : taken) used += range.bytes;
    ASSERT_EQ(space.used(), used);
  }
}

}  // namespace
}  // namespace fox
