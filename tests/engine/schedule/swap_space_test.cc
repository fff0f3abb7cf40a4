// SwapSpace: ranges do not overlap, the first gap that is large enough is taken, nothing is lost.
#include "engine/schedule/swap_space.h"

#include <gtest/gtest.h>

#include <iterator>
#include <map>
#include <random>

namespace fox {
namespace {

TEST(SwapSpaceTest, TheFirstGapThatIsLargeEnough) {
  SwapSpace space(100);
  const int64_t a = *space.Take(30), b = *space.Take(30), c = *space.Take(30);
  EXPECT_EQ(space.used(), 90);
  EXPECT_FALSE(space.Take(11));
  EXPECT_EQ(*space.Take(10), 90);
  space.Give(a);
  space.Give(c);
  EXPECT_FALSE(space.Take(31));  // 30 and 30, but not together
  EXPECT_EQ(*space.Take(20), 0);
  EXPECT_EQ(*space.Take(11), 60);
  EXPECT_EQ(*space.Take(10), 20);
  space.Give(b);
  EXPECT_EQ(*space.Take(30), 30);
}

TEST(SwapSpaceTest, NoSpaceAtAll) {
  SwapSpace space(0);
  EXPECT_FALSE(space.Take(1));
  EXPECT_EQ(space.used(), 0);
}

TEST(SwapSpaceTest, RangesNeverOverlap) {
  std::mt19937_64 rng(1);
  SwapSpace space(1000);
  std::map<int64_t, int64_t> taken;  // bytes by offset
  for (int i = 0; i < 20000; ++i) {
    const auto bytes = static_cast<int64_t>(1 + rng() % 200);
    if (rng() % 2 == 0) {
      if (const auto offset = space.Take(bytes)) {
        const auto next = taken.lower_bound(*offset);
        EXPECT_LE(*offset + bytes, next == taken.end() ? 1000 : next->first);
        if (next != taken.begin()) {
          const auto before = std::prev(next);
          EXPECT_LE(before->first + before->second, *offset);
        }
        EXPECT_TRUE(taken.emplace(*offset, bytes).second);
      }
    } else if (!taken.empty()) {
      const auto given =
          std::next(taken.begin(), static_cast<std::ptrdiff_t>(rng() % taken.size()));
      space.Give(given->first);
      taken.erase(given);
    }
    int64_t used = 0;
    for (const auto& [offset, size] : taken) used += size;
    ASSERT_EQ(space.used(), used);
    ASSERT_EQ(space.ranges(), static_cast<int64_t>(taken.size()));
  }
}

}  // namespace
}  // namespace fox
