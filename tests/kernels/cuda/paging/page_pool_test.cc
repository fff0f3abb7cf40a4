// The page pool where the scheduler breaks its promises: the fault is reported, and nothing but the
// batch's own lists changes.
#include <gtest/gtest.h>

#include "kernels/cuda/paging/paging.h"
#include "tests/kernels/cuda/device_kv.h"

namespace fox::cuda::testing {
namespace {

TEST(PagePoolTest, ATooSmallPoolIsReported) {
  const PagedKvShape shape = NarrowShape(2, 3, 1, 4, 8, 6 * 5);
  DeviceKv kv(shape);
  kv.Begin(0, 0, 190);  // three of five pages a list
  EXPECT_EQ(kv.Fault(), PoolFault::kNone);
  const std::vector<int32_t> before = kv.page_table.ToHost(), stack = kv.free_stack.ToHost();
  kv.Begin(1, 0, 250);  // four more
  EXPECT_EQ(kv.Fault(), PoolFault::kOverdrawn);
  EXPECT_EQ(kv.FreeCount(), 0);
  EXPECT_EQ(kv.free_stack.ToHost(), stack);
  const std::vector<int32_t> after = kv.page_table.ToHost();
  const size_t of_slot = static_cast<size_t>(shape.lists_per_slot()) * 8;
  for (size_t i = 0; i < after.size(); ++i) {
    const bool taken = i / of_slot == 1 && i % 8 < 4;
    EXPECT_TRUE(taken ? after[i] >= 0 && after[i] < shape.num_pages : after[i] == before[i]) << i;
  }
  // The first fault stays, and an empty pool stays empty.
  kv.Begin(2, 0, 600);
  EXPECT_EQ(kv.Fault(), PoolFault::kOverdrawn);
  EXPECT_EQ(kv.FreeCount(), 0);
}

TEST(PagePoolTest, PagesThatComeBackTwiceAreReported) {
  const PagedKvShape shape = NarrowShape(2, 3, 1, 4, 8, 6 * 5);
  DeviceKv kv(shape);
  kv.Begin(0, 0, 190);
  kv.Release(0);
  EXPECT_EQ(kv.Fault(), PoolFault::kNone);
  const std::vector<int32_t> stack = kv.free_stack.ToHost();
  kv.length.CopyFrom({190, 0, 0, 0});
  kv.Release(0);
  EXPECT_EQ(kv.Fault(), PoolFault::kOverfilled);
  EXPECT_EQ(kv.free_stack.ToHost(), stack);
}

TEST(PagePoolTest, ASequenceBeyondItsTableIsReported) {
  const PagedKvShape shape = NarrowShape(1, 2, 1, 3, 2, 60);
  DeviceKv kv(shape);
  kv.Begin(1, 0, 128);
  EXPECT_EQ(kv.Fault(), PoolFault::kNone);
  const std::vector<int32_t> before = kv.page_table.ToHost();
  kv.Begin(1, 128, 1);
  EXPECT_EQ(kv.Fault(), PoolFault::kTableEnd);
  EXPECT_EQ(kv.page_table.ToHost(), before);
}

// Sequences that share all their pages: windows of 2 * 60 pages in a pool of 60.
TEST(PagePoolTest, MoreSplitsThanThereIsRoomForAreReported) {
  const PagedKvShape shape = NarrowShape(1, 1, 1, 3, 64, 64);
  DeviceKv kv(shape);
  kv.Begin(0, 0, 60 * kPageTokens - 1);
  kv.Share(0, 1);
  const DeviceBatch batch({{0, 60 * kPageTokens - 1, 1, -10}, {1, 59 * kPageTokens, 1, -10}});
  const DeviceWork work(shape, 2, 2);
  StepSchedule schedule = work.view;
  EXPECT_EQ(MaxDecodeSplits(2, shape), 2 * 17);
  for (const int room : {30, 29}) {
    SCOPED_TRACE(::testing::Message() << room);
    schedule.max_splits = room;
    ASSERT_EQ(PlanSplits(batch.view, kv.view, schedule, 0, nullptr), cudaSuccess);
    EXPECT_EQ(kv.Fault(), room == 30 ? PoolFault::kNone : PoolFault::kSplitOverflow) << room;
    EXPECT_EQ(work.seq_heads.ToHost()[1].end, room);
  }
}

// With poison_free_pages; DeviceKv begins full of poison.
void ExpectWritesAreReported(DType dtype) {
  PagedKvShape shape = NarrowShape(2, 3, 1, 4, 8, 6 * 5);
  shape.dtype = dtype;
  shape.poison_free_pages = true;
  DeviceKv kv(shape);
  kv.Begin(0, 0, 190);
  EXPECT_EQ(kv.Fault(), PoolFault::kNone);
  const std::vector<uint16_t> poison = kv.keys.ToHost();
  std::vector<uint16_t> written = poison;
  const size_t page = static_cast<size_t>(shape.kv_bytes()) / sizeof(uint16_t);
  for (const int32_t owned : kv.page_table.ToHost()) {
    if (owned >= 0) written[static_cast<size_t>(owned) * page + 5] = 0x3f80;
  }
  ASSERT_NE(written, poison);
  kv.keys.CopyFrom(written);
  kv.values.CopyFrom(written);
  kv.Release(0);
  EXPECT_EQ(kv.keys.ToHost(), poison);
  EXPECT_EQ(kv.values.ToHost(), poison);
  kv.Begin(1, 0, 64);
  EXPECT_EQ(kv.Fault(), PoolFault::kNone);
  std::vector<uint16_t> damaged = poison;
  damaged.back() = 0;  // of the page at the bottom of the stack
  kv.values.CopyFrom(damaged);
  kv.Begin(2, 0, 64);
  EXPECT_EQ(kv.Fault(), PoolFault::kWrittenWhileFree);
}

TEST(PagePoolTest, AWriteIntoAFreePageIsReported) {
  for (const DType dtype : {DType::kBF16, DType::kE4M3}) ExpectWritesAreReported(dtype);
}

}  // namespace
}  // namespace fox::cuda::testing
