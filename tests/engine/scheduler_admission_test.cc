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
  // A step, and all that run and have a window read what they got: they turn slow and keep going.
  Schedule StepAndRead(Seconds now) {
    Schedule schedule = Step(now);
    for (const auto& sequence : sequences_) {
      if (sequence->state != SequenceState::kRunning || sequence->request.flow_window == 0)
        continue;
      Acknowledge(sequence.get(), sequence->produced());
    }
    return schedule;
  }
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

// Of four seats guests may have one. Newcomers take three, one after the other, and turn slow.
// Where seats get free only when guests have just run, no step that may have guests finds one: then
// until the guest has aged.
TEST_F(SchedulerAdmissionTest, NewcomersThatTurnSlowKeepNoGuestOut) {
  for (int i = 0; i < 8; ++i) times_.RecordStep(0, 1, 1.0);
  times_.RecordStep(0, 1, 2.0, /*guests=*/true);
  ASSERT_GT(times_.GuestTurn(), 8);
  for (const bool behind_guests : {false, true}) {
    sequences_.clear();
    Start();
    Sequence* guest = Add(10, 0, 1);
    Step();
    Step();
    ASSERT_EQ(guest->state, SequenceState::kPaused);
    Add(10);
    for (int i = 0; i < 3; ++i) Add(10, 0, 1);
    StepAndRead(0);
    Acknowledge(guest, 1);
    size_t oldest = 2;
    Seconds now = 0;
    while (guest->state == SequenceState::kWaiting) {
      ASSERT_LT(oldest, 40u);
      if (StepAndRead(now += 0.1).guests || !behind_guests) {
        scheduler_->Remove(sequences_[oldest++].get());
        Add(10, 0, 1);
      }
    }
    EXPECT_EQ(now > WaitingQueue::kAging, behind_guests);
  }
}

// Though the seat of guests is taken: it had one before.
TEST_F(SchedulerAdmissionTest, AGuestThatWasPreemptedComesBack) {
  limits_.num_pages = 60;
  Start();
  Sequence* first = Add(640);
  Add(10);
  Sequence* other = Add(10, 0, 1);
  while (other->state != SequenceState::kPaused) Step();
  Acknowledge(other, 1);
  StepAndRead(0);
  ASSERT_TRUE(other->guest);
  Sequence* guest = Add(10, 0, 1);
  while (guest->stats.preemptions == 0) StepAndRead(0);
  ASSERT_TRUE(other->reads_slowly() && guest->reads_slowly());
  StepAndRead(0);
  EXPECT_EQ(guest->state, SequenceState::kWaiting);  // for pages
  scheduler_->Remove(first);
  StepAndRead(0);
  EXPECT_EQ(guest->state, SequenceState::kRunning);
}

}  // namespace
}  // namespace fox
