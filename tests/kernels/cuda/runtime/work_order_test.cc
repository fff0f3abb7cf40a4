// The order of prefill attention's head tiles: each once, and the longest of a group first.
#include "kernels/cuda/runtime/work_order.h"

#include <gtest/gtest.h>

#include <set>
#include <utility>

namespace fox::cuda {
namespace {

TEST(WorkOrderTest, EveryHeadTileOnceLongestOfAGroupFirst) {
  for (const int q_heads : {1, 7, 8, 12, 24, 25, 40}) {
    for (const int num_tiles : {1, 2, 33, 100, 1000}) {
      const WorkOrder order(num_tiles, q_heads, 64);
      std::set<std::pair<int, int>> seen;
      int last_tile = num_tiles, last_group = 0;
      for (int i = 0; i < num_tiles * q_heads; ++i) {
        int tile = -1, head = -1;
        order.PlaceOf(i, &tile, &head);
        ASSERT_TRUE(tile >= 0 && tile < num_tiles && head >= 0 && head < q_heads) << i;
        ASSERT_TRUE(seen.insert({tile, head}).second) << i;
        const int group = head / order.heads();
        ASSERT_GE(group, last_group) << i;
        ASSERT_TRUE(group > last_group || tile <= last_tile) << i;
        last_group = group;
        last_tile = tile;
      }
    }
  }
}

// 24 heads of 64: all of them up to 5,461 rows, half of them up to 10,922, then eight.
TEST(WorkOrderTest, AGroupFitsTheL2) {
  const auto heads = [](int num_tiles, int q_heads, int head_dim) {
    return WorkOrder(num_tiles, q_heads, head_dim).heads();
  };
  EXPECT_EQ(heads(1, 24, 64), 24);
  EXPECT_EQ(heads(42, 24, 64), 24);
  EXPECT_EQ(heads(43, 24, 64), 12);
  EXPECT_EQ(heads(85, 24, 64), 12);
  EXPECT_EQ(heads(86, 24, 64), 8);
  EXPECT_EQ(heads(8192, 24, 64), 8);
  EXPECT_EQ(heads(32, 16, 128), 16);
  EXPECT_EQ(heads(33, 16, 128), 8);
  EXPECT_EQ(heads(33, 16, 32), 16);
  EXPECT_EQ(heads(8192, 5, 64), 5);
}

}  // namespace
}  // namespace fox::cuda
