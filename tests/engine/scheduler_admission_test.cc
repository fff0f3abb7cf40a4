// Who gets a seat: by the pages that it is expected to keep, or in the worst case.
#include "gmock/gmock.h"
#include "tests/engine/scheduler_fixture.h"

namespace fox {
namespace {

class SchedulerAdmissionTest : public SchedulerTest {
 protected:
  // A prompt of 640 tokens, 20 pages, of which it keeps a quarter. Then the pool is empty.
  void Teach() {
    Sequence* first = Add(640);
    while (first->remaining() > 1) {
      const int64_t before = first->computed;
      Plan();
      Collect(PagesOf(first->computed - before) * 3 / 4);
    }
    scheduler_->Remove(first);
    Step();
  }
  int64_t PagesOf(int64_t tokens) const { return limits_.lists_per_slot * PagesFor(tokens); }
};

TEST_F(SchedulerAdmissionTest, WhatOthersKeptIsEnough) {
  for (const KvAdmission admission : {KvAdmission::kExpected, KvAdmission::kWorstCase}) {
    options_.kv_admission = admission;
    limits_.num_pages = 24;
    sequences_.clear();
    Start();
    Teach();
    Add(64);
    Step();
    Sequence* next = Add(640);  // 20 pages, and 2 of headroom; 20 are free
    Step();
    EXPECT_EQ(next->state == SequenceState::kRunning, admission == KvAdmission::kExpected);
  }
}

TEST_F(SchedulerAdmissionTest, BeforeAnyExperienceTheWorstCaseCounts) {
  limits_.num_pages = 24;
  Start();
  Add(64);
  Step();
  Add(640);
  EXPECT_EQ(Ids(Step()), IdList{0});
}

TEST_F(SchedulerAdmissionTest, WhoPrunesLessIsNotExpectedToKeepAsLittle) {
  limits_.num_pages = 24;
  Start();
  Teach();
  Add(64);
  Step();
  Sequence* next = Add(640);
  next->log_tolerance = options_.log_tolerance - 1;
  Step();
  EXPECT_EQ(next->state, SequenceState::kWaiting);
}

// Learnt from who keeps a quarter; then one comes that keeps all. It takes no page that others
// need for their next row, waits with its pages, is preempted by who came before, and comes back
// when there is room for all that it keeps.
TEST_F(SchedulerAdmissionTest, WhoOutgrowsItsPromiseWaitsAndIsPreempted) {
  limits_.num_pages = 24;
  Start();
  Teach();
  Sequence* first = Add(63);
  Step();
  Sequence* large = Add(640);
  Seconds now = 0;
  while (large->blocked_since == kNever) Step(now += 0.01);
  EXPECT_GE(large->slot, 0);
  EXPECT_GT(large->remaining(), 1);
  EXPECT_EQ(large->stats.preemptions, 0);
  while (large->stats.preemptions == 0) {
    EXPECT_THAT(Ids(Step(now += 0.01)), testing::Contains(first->request.id));  // never held up
  }
  EXPECT_GT(large->pages_lost, 10);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(Ids(Step(now += 0.01)), IdList{first->request.id});
  scheduler_->Remove(first);
  EXPECT_EQ(Ids(Step(now)), IdList{large->request.id});
}

TEST_F(SchedulerAdmissionTest, APromptLeavesTheOthersAPageRowForAWhile) {
  limits_.num_pages = 40;
  Start();
  Add(64);
  Add(64);
  Sequence* large = Add(950);  // 30 pages
  const auto used = [&] {
    int64_t pages = 0;
    for (const auto& sequence : sequences_) pages += PagesOf(sequence->computed);
    return pages;
  };
  for (int i = 0; i < 10; ++i) {
    Step();
    EXPECT_LE(used(), 40 - 2 * limits_.lists_per_slot);
  }
  EXPECT_GT(large->remaining(), 1);
  Step(Scheduler::kOvertaking);
  EXPECT_EQ(large->remaining(), 1);
  EXPECT_EQ(used(), 38);
}

}  // namespace
}  // namespace fox
