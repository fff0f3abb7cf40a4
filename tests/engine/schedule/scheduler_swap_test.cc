// Preemption swaps out or computes again: what decides, and what a sequence needs to come back.
#include "gmock/gmock.h"
#include "tests/engine/schedule/scheduler_fixture.h"

namespace fox {
namespace {

class SchedulerSwapTest : public SchedulerTest {
 protected:
  // Two lists and seven page rows; a byte a page, so much for a state.
  SchedulerSwapTest() {
    limits_.num_pages = 14;
    limits_.swap_bytes = 1000;
    limits_.swap_state_bytes = 10;
    limits_.swap_page_bytes = 1;
    limits_.swap_rate = 1e9;
    options_.kv_admission = KvAdmission::kWorstCase;
  }
  // The first grows by a row that the second has to give up; its plan.
  Schedule Crowd() {
    first_ = Add(150);
    second_ = Add(180);
    Schedule schedule;
    for (int i = 0; i < 100 && schedule.preemptions == 0; ++i) schedule = Step();
    EXPECT_EQ(schedule.preemptions, 1);
    return schedule;
  }

  Sequence* first_ = nullptr;
  Sequence* second_ = nullptr;
};

TEST_F(SchedulerSwapTest, ASlotIsSwappedOutAndReleased) {
  Start();
  const Schedule schedule = Crowd();
  ASSERT_EQ(schedule.plan.swap_outs.size(), 1u);
  const SwappedSlot& out = schedule.plan.swap_outs[0];
  EXPECT_EQ(schedule.plan.release_slots, std::vector<int32_t>{out.slot});
  EXPECT_EQ(out.pages, 8);
  EXPECT_EQ(out.tokens, second_->computed);
  EXPECT_EQ(second_->slot, -1);
  EXPECT_GT(second_->computed, 180);
  EXPECT_EQ(second_->remaining(), 1);
  EXPECT_EQ(scheduler_->swapped(), 1);
  EXPECT_EQ(scheduler_->swap_used(), 10 + 8);
}

// It wants its eight pages; the next token has room in the last of them.
TEST_F(SchedulerSwapTest, ItComesBackWhenAllItsPagesAreFree) {
  Start();
  Crowd();
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(Step().plan.swap_ins.empty());
  const int64_t computed = second_->computed;
  scheduler_->Remove(first_);
  const Schedule schedule = Step();
  ASSERT_EQ(schedule.plan.swap_ins.size(), 1u);
  EXPECT_EQ(schedule.plan.swap_ins[0].pages, 8);
  EXPECT_EQ(schedule.plan.swap_ins[0].tokens, computed);
  EXPECT_EQ(schedule.plan.swap_ins[0].slot, second_->slot);
  EXPECT_EQ(Chunks(schedule), Sizes{1});
  EXPECT_EQ(schedule.plan.sequences[0].position, computed);
  EXPECT_EQ(scheduler_->swapped(), 0);
  EXPECT_EQ(scheduler_->swap_used(), 0);
  EXPECT_EQ(second_->stats.swaps, 1);
  EXPECT_EQ(second_->FinalStats(0).acp.pages_allocated, 8);
}

// Beside its eight pages a row must be free, which the one that runs may need.
TEST_F(SchedulerSwapTest, ARowIsLeftForThoseThatRun) {
  for (const int64_t evicted : {3, 4}) {  // of the first one's eight
    sequences_.clear();
    Start();
    Crowd();
    Plan();
    Collect(evicted);
    EXPECT_EQ(Step().plan.swap_ins.size(), evicted == 4 ? 1u : 0u);
  }
}

TEST_F(SchedulerSwapTest, TheCheaperWayIsTaken) {
  // 180 tokens and some against 18 bytes twice.
  for (const double prefill : {1e-4, 1e-8}) {
    sequences_.clear();
    limits_.swap_rate = 1e4;
    times_ = {};
    Start();
    for (int i = 0; i < 20; ++i) times_.RecordStep(1000, 0, 1000 * prefill);
    const Schedule schedule = Crowd();
    EXPECT_EQ(schedule.plan.swap_outs.size(), prefill > 1e-5 ? 1u : 0u);
    EXPECT_EQ(scheduler_->swapped(), prefill > 1e-5 ? 1 : 0);
    EXPECT_EQ(second_->computed > 0, prefill > 1e-5);
  }
}

// The first estimate says 17 ms for what takes 22 to compute again; copies turn out to take twice
// as long.
TEST_F(SchedulerSwapTest, WhatIsMeasuredCorrectsTheFirstEstimate) {
  constexpr int64_t kMany = 1 << 30;
  limits_.swap_page_bytes = 1 << 20;
  limits_.swap_bytes = 100 << 20;
  for (const bool measured : {false, true}) {
    sequences_.clear();
    times_ = {};
    Start();
    for (int i = 0; i < 20; ++i) times_.RecordStep(1000, 0, 1000 * 1e-4);
    for (int i = 0; measured && i < 20; ++i) {
      times_.RecordSwap(1000, 0, kMany, limits_.swap_rate, 0.1 + 2 * 1.07);
    }
    EXPECT_EQ(Crowd().plan.swap_outs.size(), measured ? 0u : 1u);
  }
}

TEST_F(SchedulerSwapTest, NoRoomNoSwap) {
  limits_.swap_bytes = 17;
  Start();
  EXPECT_TRUE(Crowd().plan.swap_outs.empty());
  EXPECT_EQ(second_->computed, 0);
  EXPECT_EQ(scheduler_->swap_used(), 0);
}

// Pages that eviction in flight may free are counted until it is known; then the range is made
// smaller before another wants one.
TEST_F(SchedulerSwapTest, ARangeIsTrimmedToWhatWasLeft) {
  limits_.depth = 2;
  limits_.samples_on_device = true;
  limits_.num_pages = 18;
  limits_.swap_bytes = 10 + 8 + 10 + 4;
  Start();
  first_ = Add(128);
  second_ = Add(190);
  Schedule schedule;
  for (int i = 0; i < 300 && schedule.preemptions == 0; ++i) {
    if (flights_.size() > 1) Collect();
    schedule = Plan();
  }
  ASSERT_EQ(schedule.plan.swap_outs.size(), 1u);
  EXPECT_GT(second_->in_flight, 0);
  const int64_t pages = schedule.plan.swap_outs[0].pages;
  EXPECT_EQ(second_->swapped->pages, pages);
  EXPECT_EQ(scheduler_->swap_used(), 10 + pages);
  Collect(/*evicted=*/1);
  EXPECT_EQ(second_->in_flight, 0);
  EXPECT_EQ(second_->swapped->pages, pages - 1);
}

// A sequence with priority takes the place of one that would come back after it.
TEST_F(SchedulerSwapTest, ThePlaceOfWhoComesBackLaterIsTaken) {
  limits_.swap_bytes = 10 + 12;
  Start();
  Crowd();
  ASSERT_TRUE(second_->swapped.has_value());
  Sequence* urgent = Add(60, -2);
  Sequence* most_urgent = Add(60, -3);
  for (int i = 0; i < 400 && first_->stats.preemptions == 0; ++i) Step();
  ASSERT_EQ(first_->stats.preemptions, 1);
  EXPECT_TRUE(first_->swapped.has_value());
  EXPECT_FALSE(second_->swapped.has_value());
  EXPECT_EQ(second_->computed, 0);
  EXPECT_EQ(second_->queue().tokens, second_->remaining());
  EXPECT_EQ(scheduler_->swapped(), 1);
  scheduler_->Remove(first_);
  scheduler_->Remove(urgent);
  scheduler_->Remove(most_urgent);
  EXPECT_EQ(scheduler_->swap_used(), 0);
  EXPECT_EQ(Ids(Step()), IdList{second_->request.id});
}

}  // namespace
}  // namespace fox
