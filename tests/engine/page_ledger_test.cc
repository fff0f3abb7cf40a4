// PageLedger: what is sure to be free with plans in flight, evictions and releases.
#include "engine/page_ledger.h"

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

}  // namespace
}  // namespace fox
