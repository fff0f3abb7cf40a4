// Windows are cut into KV splits by their own length alone, and never into more than there is room
// for.
#include "kernels/cuda/runtime/step_schedule.h"

#include <gtest/gtest.h>

#include <random>

namespace fox::cuda {
namespace {

TEST(StepScheduleTest, SplitsGrowWithTheirWindow) {
  for (int pages : {1, 2, 320, 512}) EXPECT_EQ(SplitShift(pages), 2) << pages;
  for (int pages : {513, 1024, 4096}) EXPECT_EQ(SplitShift(pages), 3) << pages;
  for (int pages : {4097, 8192}) EXPECT_EQ(SplitShift(pages), 4) << pages;
  EXPECT_EQ(SplitShift(16384), 5);
}

// Wherever it begins, so that short windows need no merge.
TEST(StepScheduleTest, SplitsBeginWithTheirWindow) {
  for (int first : {0, 1, 2, 3, 62, 63}) {
    SCOPED_TRACE(first);
    for (int pages : {1, 3, 4}) EXPECT_EQ(NumSplits(first, first + pages - 1), 1) << pages;
    for (int pages : {5, 8}) EXPECT_EQ(NumSplits(first, first + pages - 1), 2) << pages;
    EXPECT_EQ(SplitPage(first, 2, 7, 7), first);
    EXPECT_EQ(SplitPage(first, 2, 9, 7), first + 8);
  }
}

TEST(StepScheduleTest, NoWindowHasMoreSplitsThanThereIsRoomFor) {
  std::mt19937_64 random(1);
  for (int n = 0; n < 100000; ++n) {
    const int pages = 1 << std::uniform_int_distribution<int>(0, 24)(random);
    const int last = std::uniform_int_distribution<int>(0, pages)(random);
    const int first = std::uniform_int_distribution<int>(0, last)(random);
    const int splits = NumSplits(first, last);
    PagedKvShape shape;
    shape.q_heads = shape.kv_heads = 1;
    shape.max_pages = last + 1;
    EXPECT_GE(splits, 1);
    EXPECT_LE(splits, MaxDecodeSplits(1, shape)) << first << " to " << last;
    EXPECT_LE(splits, kManySplits) << first << " to " << last;
    EXPECT_LE(splits, ((last - first) >> kMinSplitShift) + 1) << first << " to " << last;
  }
}

TEST(WidePagesTest, HaveRoomForAListAndForAllListsAtMost) {
  PagedKvShape shape;
  shape.kv_heads = 3;
  shape.head_dim = 64;
  shape.max_pages = 100;
  EXPECT_EQ(WidePageCapacity(shape, 2, int64_t{1} << 30), 0) << "pages in bf16";
  shape.dtype = DType::kE4M3;
  EXPECT_EQ(WidePageBytes(shape), 2 * 64 * 64 * 2);
  EXPECT_EQ(WidePageCapacity(shape, 2, 0), 100);
  EXPECT_EQ(WidePageCapacity(shape, 2, 250 * WidePageBytes(shape)), 250);
  EXPECT_EQ(WidePageCapacity(shape, 2, int64_t{1} << 30), 2 * 3 * 100);
}

TEST(HeadsTogetherTest, GroupsFallIntoFewPartsThatAreAlike) {
  PagedKvShape shape;
  shape.head_dim = 64;
  shape.kv_heads = 1;
  shape.max_pages = 20;
  const std::vector<int> together = {1, 2, 3, 4, 5, 6, 7, 8, 5, 5, 6, 6, 7, 7, 8, 8};
  for (int group = 1; group <= 16; ++group) {
    shape.q_heads = group;
    EXPECT_EQ(HeadsTogether(shape), together[static_cast<size_t>(group - 1)]) << group;
    EXPECT_EQ(MaxDecodeSplits(3, shape), 3 * (group > 8 ? 2 : 1) * 6) << group;
  }
  shape.head_dim = 32;
  EXPECT_EQ(HeadsTogether(shape), 1);
}

}  // namespace
}  // namespace fox::cuda
