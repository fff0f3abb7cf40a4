// PageLedger: what is sure to be free with plans in flight, evictions and releases.
#include "engine/schedule/page_ledger.h"

#include <gtest/gtest.h>

namespace fox {
namespace {

constexpr int64_t kLists = 3;
constexpr int64_t kPool = 100;

ExecutorLimits Limits() {
  ExecutorLimits limits;
  limits.num_pages = kPool;
  limits.lists_per_slot = kLists;
  limits.max_num_seqs = 4;
  return limits;
}

// Feeds `count` tokens from `position` on; may release slots first.
StepPlan Feed(int32_t slot, int64_t position, int64_t count, std::vector<int32_t> release = {}) {
  StepPlan plan;
  plan.release_slots = std::move(release);
  PlannedSequence& sequence = plan.sequences.emplace_back();
  sequence.slot = slot;
  sequence.position = position;
  sequence.token_ids.assign(static_cast<size_t>(count), 1);
  return plan;
}

StepResult Collected(int64_t free_pages, int64_t allocated, int64_t evicted) {
  StepResult result;
  result.free_pages = free_pages;
  AcpStats& stats = result.stats.emplace_back();
  stats.pages_allocated = allocated;
  stats.pages_evicted = evicted;
  return result;
}

TEST(PageLedgerTest, ASequenceTakesAPageOfEveryListAtEveryPageEnd) {
  const PageLedger ledger(Limits());
  EXPECT_EQ(ledger.Between(0, 1), kLists);
  EXPECT_EQ(ledger.Between(1, 64), 0);
  EXPECT_EQ(ledger.Between(64, 65), kLists);
  EXPECT_EQ(ledger.Between(0, 129), 3 * kLists);
}

TEST(PageLedgerTest, APlanInFlightCountsInFull) {
  PageLedger ledger(Limits());
  ledger.Submit(Feed(2, 0, 65));
  EXPECT_EQ(ledger.free(), kPool - 2 * kLists);
  EXPECT_EQ(ledger.held(2), 2 * kLists);
  ledger.Submit(Feed(2, 65, 64));
  EXPECT_EQ(ledger.free(), kPool - 3 * kLists);
  EXPECT_TRUE(ledger.in_flight());
}

TEST(PageLedgerTest, EvictionsCountOnceTheirPlanIsCollected) {
  PageLedger ledger(Limits());
  ledger.Submit(Feed(0, 0, 128));
  ledger.Submit(Feed(0, 128, 1));
  // The first plan evicted two pages; the second is still expected to take its three.
  ledger.Collect(Collected(kPool - 2 * kLists + 2, 2 * kLists, 2));
  EXPECT_EQ(ledger.free(), kPool - 3 * kLists + 2);
  EXPECT_EQ(ledger.held(0), 3 * kLists - 2);
  EXPECT_EQ(ledger.free() + ledger.held(0), kPool);
}

TEST(PageLedgerTest, AReleaseInFlightGivesBackWhatTheSlotStillHolds) {
  PageLedger ledger(Limits());
  ledger.Submit(Feed(0, 0, 128));                 // slot 0 holds 6
  ledger.Submit(Feed(1, 0, 1, /*release=*/{0}));  // and gives them back
  EXPECT_EQ(ledger.free(), kPool - kLists);
  EXPECT_EQ(ledger.held(0), 0);
  // It evicted four of the six before: they are not given back a second time.
  ledger.Collect(Collected(kPool - 2, 2 * kLists, 4));
  EXPECT_EQ(ledger.free(), kPool - kLists);
  ledger.Collect(Collected(kPool - kLists, kLists, 0));
  EXPECT_EQ(ledger.free(), kPool - kLists);
  EXPECT_EQ(ledger.held(1), kLists);
  EXPECT_FALSE(ledger.in_flight());
}

TEST(PageLedgerTest, AnUnderstatedFreeCountIsTakenAsItIs) {
  PageLedger ledger(Limits());
  ledger.Submit(Feed(0, 0, 1));
  ledger.Collect(Collected(10, kLists, 0));
  EXPECT_EQ(ledger.free(), 10);
}

// What is swapped out is released; it comes back with its own pages, and takes what it feeds.
TEST(PageLedgerTest, ASlotThatIsSwappedInTakesItsPages) {
  PageLedger ledger(Limits());
  ledger.Submit(Feed(0, 0, 128));
  ledger.Collect(Collected(kPool - 2 * kLists + 2, 2 * kLists, 2));
  StepPlan out = Feed(1, 0, 1, {0});
  out.swap_outs.push_back({0, 0, 4, 128});
  ledger.Submit(out);
  EXPECT_EQ(ledger.free(), kPool - kLists);
  EXPECT_EQ(ledger.held(0), 0);
  StepPlan in = Feed(2, 128, 1);
  in.swap_ins.push_back({2, 0, 4, 128});
  ledger.Submit(in);
  EXPECT_EQ(ledger.free(), kPool - 2 * kLists - 4);
  EXPECT_EQ(ledger.held(2), kLists + 4);
  ledger.Collect(Collected(kPool - kLists, kLists, 0));
  EXPECT_EQ(ledger.free(), kPool - 2 * kLists - 4);
  ledger.Collect(Collected(kPool - 2 * kLists - 4, 3 * kLists, 2));
  EXPECT_EQ(ledger.held(2), kLists + 4);
  EXPECT_EQ(ledger.free() + ledger.held(1) + ledger.held(2), kPool);
}

// With snapshots: what several slots have counts for none until the executor says so.
class SharedPagesTest : public testing::Test {
 protected:
  SharedPagesTest() : ledger_(WithSnapshots()) {}

  static ExecutorLimits WithSnapshots() {
    ExecutorLimits limits = Limits();
    limits.snapshot_slots = 2;
    return limits;
  }
  void Collect(int64_t free, std::vector<int32_t> sole) {
    StepResult result;
    result.free_pages = free;
    result.sole_pages = sole.data();
    ASSERT_EQ(sole.size(), 6u);
    ledger_.Collect(result);
  }

  PageLedger ledger_;
};

TEST_F(SharedPagesTest, WhatIsSharedIsNobodysUntilTheExecutorSaysSo) {
  ledger_.Submit(Feed(1, 0, 640));
  Collect(kPool - 30, {0, 30, 0, 0, 0, 0});
  EXPECT_EQ(ledger_.shared(), 0);
  ledger_.Share(1);
  EXPECT_EQ(ledger_.held(1), 0);
  StepPlan plan = Feed(1, 640, 64);
  plan.snapshots.push_back({1, 4, 640});
  ledger_.Submit(plan);
  EXPECT_EQ(ledger_.held(1), kLists);
  EXPECT_EQ(ledger_.held(4), 0);
  EXPECT_EQ(ledger_.shared(), 30);
  Collect(kPool - 33, {0, 3, 0, 0, 0, 0});
  // The sequence ends: the snapshot has the rest alone, when the plan has run.
  StepPlan last;
  last.release_slots = {1};
  ledger_.Submit(last);
  EXPECT_EQ(ledger_.free(), kPool - 30);
  EXPECT_EQ(ledger_.held(4), 0);
  Collect(kPool - 30, {0, 0, 0, 0, 30, 0});
  EXPECT_EQ(ledger_.held(4), 30);
  StepPlan drop;
  drop.drop_snapshots = {4};
  ledger_.Submit(drop);
  EXPECT_EQ(ledger_.free(), kPool);
}

TEST_F(SharedPagesTest, ASlotThatIsSnapshotAndReleasedFreesNothing) {
  ledger_.Submit(Feed(0, 0, 64));
  Collect(kPool - 3, {3, 0, 0, 0, 0, 0});
  ledger_.Share(0);
  StepPlan plan;
  plan.snapshots.push_back({0, 5, 64});
  plan.release_slots = {0};
  ledger_.Submit(plan);
  EXPECT_EQ(ledger_.free(), kPool - 3);
}

// What was shared for the plan that is being made stays so when an earlier one comes in.
TEST_F(SharedPagesTest, ACollectedPlanDoesNotBringBackWhatIsBeingShared) {
  ledger_.Submit(Feed(0, 0, 64));
  ledger_.Share(0);
  Collect(kPool - 3, {3, 0, 0, 0, 0, 0});
  EXPECT_EQ(ledger_.held(0), 0);
}

// In one plan a slot is released and starts from a snapshot.
TEST_F(SharedPagesTest, AReleasedSlotMayStartFromASnapshotAtOnce) {
  ledger_.Submit(Feed(0, 0, 64));
  Collect(kPool - 9, {3, 0, 0, 0, 6, 0});
  ledger_.Share(4);
  StepPlan plan = Feed(0, 128, 1, {0});
  plan.starts.push_back({4, 0, 128});
  ledger_.Submit(plan);
  EXPECT_EQ(ledger_.free(), kPool - 9);  // 3 come, 3 go
  EXPECT_EQ(ledger_.held(0), kLists);
  EXPECT_EQ(ledger_.held(4), 0);
}

}  // namespace
}  // namespace fox
