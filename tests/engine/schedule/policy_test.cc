// What comes first, what may start, and what gives way.
#include "engine/schedule/policy.h"

#include <memory>

#include "gtest/gtest.h"

namespace fox {
namespace {

class PolicyTest : public testing::Test {
 protected:
  Sequence* Add(int32_t priority, uint64_t client = 0, int64_t prompt = 10, int64_t window = 0) {
    EngineOptions options;
    options.priority_scheduling = true;
    Request request;
    request.priority = priority;
    request.client = client;
    request.flow_window = static_cast<int32_t>(window);
    request.stop.max_tokens = 100;
    request.prompt.assign(static_cast<size_t>(prompt), 1);
    const auto place = static_cast<int64_t>(sequences_.size());
    sequences_.push_back(std::make_unique<Sequence>(std::move(request), options, 1000, place, 0.0));
    sequences_.back()->place = place;
    return sequences_.back().get();
  }
  // It has paused and reads on.
  Sequence* AddSlow() {
    Sequence* sequence = Add(0, 0, 10, 1);
    sequence->Append({1, 0, 0, {}});
    sequence->UpdatePause(0);
    sequence->reader.Acknowledge(1);
    sequence->UpdatePause(0);
    return sequence;
  }

  std::vector<std::unique_ptr<Sequence>> sequences_;
};

TEST_F(PolicyTest, TheRescuedThenTheUrgentThenInOrder) {
  Sequence* first = Add(0);
  Sequence* second = Add(0);
  Sequence* urgent = Add(-1);
  Sequence* late = Add(5);
  EXPECT_TRUE(RunsBefore(*first, *second));
  EXPECT_TRUE(RunsBefore(*urgent, *first));
  EXPECT_TRUE(RunsBefore(*first, *late));
  late->rescued = true;
  EXPECT_TRUE(RunsBefore(*late, *urgent));
  EXPECT_FALSE(RunsBefore(*urgent, *late));
  EXPECT_TRUE(ComesBefore(*urgent, *late));  // in the queue it has no place before its client's
}

TEST_F(PolicyTest, BestEffortSequencesStartWithinTheirShare) {
  Sequence* slow = AddSlow();
  ASSERT_TRUE(IsBestEffort(*slow));
  EXPECT_EQ(MostSlow(16), 2);
  EXPECT_EQ(MostSlow(3), 1);
  EXPECT_TRUE(MayStart(*slow, 10, 1, 16, true));
  EXPECT_FALSE(MayStart(*slow, 10, 1, 16, false));
  EXPECT_FALSE(MayStart(*slow, 10, 2, 16, true));
  EXPECT_TRUE(MayStart(*slow, 2, 2, 16, true));  // beside others like it
  slow->rescued = true;
  EXPECT_TRUE(MayStart(*slow, 10, 2, 16, false));
  Sequence* other = Add(0);
  EXPECT_TRUE(MayStart(*other, 10, 2, 16, false));
  other->in_flight = 1;  // preempted, and its results are to come
  EXPECT_FALSE(MayStart(*other, 10, 2, 16, false));
}

TEST_F(PolicyTest, PagesOfPausedOnesGoFirstThenTheCheapest) {
  EXPECT_EQ(PagesVictim({}), nullptr);
  Sequence* waits = Add(0, 0, 5);
  Sequence* longer = Add(0, 0, 20);
  Sequence* shorter = Add(0, 0, 10);
  waits->state = SequenceState::kWaiting;
  longer->state = shorter->state = SequenceState::kPaused;
  EXPECT_EQ(PagesVictim({waits, longer, shorter}), shorter);
  EXPECT_EQ(PagesVictim({waits}), waits);
}

TEST_F(PolicyTest, TheClientWithMostGivesASlotAndNeverItsFirst) {
  Sequence* next = Add(0, 9);
  std::set<Sequence*, RunsEarlier> running = {Add(0, 1), Add(0, 2)};
  EXPECT_EQ(SlotVictim(running, *next, 10), nullptr);
  Sequence* last = Add(0, 1);
  running.insert(last);
  EXPECT_EQ(SlotVictim(running, *next, 10), nullptr);  // it has not started
}

TEST_F(PolicyTest, WhatCannotEndInTimeDoesNotStart) {
  ServiceTimes times;
  Sequence* next = Add(0);
  next->request.deadline = 0.5;
  EXPECT_FALSE(MissesDeadline(*next, times, 0.4));  // nothing is known
  for (int i = 0; i < 20; ++i) times.RecordStep(100, 0, 1);
  EXPECT_FALSE(MissesDeadline(*next, times, 0.3));
  EXPECT_TRUE(MissesDeadline(*next, times, 0.45));  // its prompt takes 0.1 s
  next->started = true;
  EXPECT_FALSE(MissesDeadline(*next, times, 0.45));
}

}  // namespace
}  // namespace fox
