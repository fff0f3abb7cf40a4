// The splits of a KV loop: by its own length, at absolute places, each key/value tile once, and
// never more than a merge has room for.
#include "kernels/cuda/runtime/key_splits.h"

#include <gtest/gtest.h>

#include <random>

namespace fox::cuda {
namespace {

int SplitsOf(int first, int last) { return NumKeySplits(first, last, kMinKeySplitShift, 0); }

TEST(KeySplitsTest, EarlyRowsAreNotSplit) {
  EXPECT_EQ(NumKeySplits(0, 255, 5, 256), 1);
  EXPECT_EQ(NumKeySplits(0, 256, 5, 256), 9);
}

// 512 rows behind 65,536 tokens: four tiles of each head in 17 splits of 32 tiles at most.
TEST(KeySplitsTest, AChunkBehind64kFillsTheDevice) {
  for (int tile = 512; tile < 516; ++tile) EXPECT_EQ(SplitsOf(0, tile), 17) << tile;
}

TEST(KeySplitsTest, SplitsHoldEachTileOnceAndEndAtAbsolutePlaces) {
  std::mt19937_64 random(1);
  for (int n = 0; n < 100000; ++n) {
    const int most = 1 << std::uniform_int_distribution<int>(1, 17)(random);
    const int last = std::uniform_int_distribution<int>(0, most)(random);
    const int first = std::uniform_int_distribution<int>(0, last)(random);
    const int least_shift = n % 6, count = NumKeySplits(first, last, least_shift, 0);
    ASSERT_LE(count, kMaxSplitsPerTile) << first << " to " << last;
    if (count == 1) continue;
    const int shift = KeySplitShift(first, last, least_shift);
    int next = last;
    for (int i = 0; i < count; ++i) {
      const KeyTileRange tiles = TilesOfSplit(first, last, least_shift, i);
      ASSERT_EQ(tiles.last, next) << first << " to " << last << ", split " << i;
      ASSERT_LE(tiles.first, tiles.last) << first << " to " << last << ", split " << i;
      ASSERT_EQ(tiles.first >> shift, tiles.last >> shift)
          << first << " to " << last << ", split " << i;
      next = tiles.first - 1;
    }
    ASSERT_EQ(next, first - 1) << first << " to " << last;
  }
}

}  // namespace
}  // namespace fox::cuda
