// Scheduler: admission by expected pages or by the worst case, and turns of running slots.
#include "gmock/gmock.h"
#include "tests/engine/schedule/scheduler_fixture.h"

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
  // Runs a step; then all running sequences with a window get everything acknowledged. So they
  // become slow readers and keep running.
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

TEST_F(SchedulerAdmissionTest, BeforeAnyExperienceTheWorstCaseCounts) {
  limits_.num_pages = 24;
  Start();
  Add(64);
  Step();
  Add(640);
  EXPECT_EQ(Ids(Step()), IdList{0});
}

TEST_F(SchedulerAdmissionTest, ARequestThatPrunesLessIsNotExpectedToKeepAsLittle) {
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

// The forecast comes from sequences that keep a quarter of their pages; then one keeps all. It
// takes no page that others need for their next row, waits with its pages, is preempted by earlier
// sequences, and comes back when there is room for all its pages.
TEST_F(SchedulerAdmissionTest, ASequenceThatOutgrowsItsForecastWaitsAndIsPreempted) {
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
  ExpectShortAnswers();
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
  Step(kStarvation);
  EXPECT_EQ(large->remaining(), 1);
  EXPECT_EQ(used(), 38);
}

// Beside others, slow readers have one of four running slots. Alone they keep all.
TEST_F(SchedulerAdmissionTest, BesideOthersSlowReadersKeepTheirShareOfSlots) {
  Start();
  for (int i = 0; i < 3; ++i) Add(10, 0, 1);
  for (int i = 0; i < 3; ++i) StepAndRead(i);
  for (const auto& sequence : sequences_) {
    EXPECT_EQ(sequence->queue().running_since, 0) << sequence->request.id;
  }
  Add(10);
  StepAndRead(3);
  EXPECT_EQ(scheduler_->running(), 4);
  StepAndRead(3);
  EXPECT_EQ(scheduler_->running(), 2);
  EXPECT_EQ(sequences_[0]->state, SequenceState::kRunning);  // the oldest request
  for (const size_t i : {1u, 2u}) {
    SCOPED_TRACE(i);
    EXPECT_EQ(sequences_[i]->state, SequenceState::kWaiting);
    EXPECT_GE(sequences_[i]->slot, 0);
  }
}

// The clients that a test names hold all running slots and got them in that order.
class SlotTurnTest : public SchedulerAdmissionTest {
 protected:
  static constexpr Seconds kTurn = kSlotTurn;

  void StartWith(const std::vector<uint64_t>& clients, int32_t num_slots = 8) {
    limits_.num_pages = 200;
    limits_.num_slots = num_slots;
    limits_.max_num_seqs = static_cast<int32_t>(clients.size());
    sequences_.clear();
    Start();
    for (const uint64_t client : clients) {
      AddOf(client);
      Step();
    }
  }
  Sequence* AddOf(uint64_t client, int32_t priority = 0) {
    client_ = client;
    return Add(10, priority);
  }
  // The clients of the running sequences, in order.
  std::vector<uint64_t> Running() const {
    std::vector<uint64_t> clients;
    for (const auto& sequence : sequences_) {
      if (sequence->state == SequenceState::kRunning) clients.push_back(sequence->request.client);
    }
    return clients;
  }
  using Clients = std::vector<uint64_t>;
};

TEST_F(SlotTurnTest, AClientWithoutASlotGetsTheLastOfTheClientWithMost) {
  StartWith({1, 1, 1, 1});
  Sequence* last = sequences_[3].get();
  const int32_t slot = last->slot;
  AddOf(1);
  Sequence* other = AddOf(2);
  Step(kTurn - 0.01);
  EXPECT_EQ(Running(), (Clients{1, 1, 1, 1}));
  Step(kTurn);
  EXPECT_EQ(Running(), (Clients{1, 1, 1, 2}));
  EXPECT_EQ(last->state, SequenceState::kWaiting);
  EXPECT_EQ(last->slot, slot);  // with its pages
  const int64_t computed = last->computed;
  for (int i = 0; i < 10; ++i) Step(2 * kTurn);
  EXPECT_EQ(Running(), (Clients{1, 1, 1, 2}));
  scheduler_->Remove(other);
  Step(2 * kTurn);  // before what its client sent later
  EXPECT_EQ(last->state, SequenceState::kRunning);
  EXPECT_EQ(last->slot, slot);
  EXPECT_EQ(last->computed, computed + 1);
  EXPECT_EQ(last->stats.preemptions, 0);
}

// One slot a step is yielded: of two clients with equally many slots, by the one whose last
// sequence came later; and never a client's first slot.
TEST_F(SlotTurnTest, TheClientWithMostGivesIt) {
  struct Case {
    Clients before, newcomers;
    std::vector<Clients> after;  // each step
  };
  const Case cases[] = {
      {{1, 1, 1, 1}, {2, 3, 4, 5}, {{1, 1, 1, 2}, {1, 1, 2, 3}, {1, 2, 3, 4}, {1, 2, 3, 4}}},
      {{1, 1, 1, 2}, {3}, {{1, 1, 2, 3}}},
      {{1, 1, 1, 2, 2}, {3}, {{1, 1, 2, 2, 3}}},
      {{1, 2, 1, 2}, {3}, {{1, 2, 1, 3}}}};
  for (const Case& c : cases) {
    StartWith(c.before);
    for (const uint64_t client : c.newcomers) AddOf(client);
    Seconds now = 0;
    for (const Clients& clients : c.after) {
      Step(now += kTurn);
      EXPECT_EQ(Running(), clients);
    }
  }
}

TEST_F(SlotTurnTest, OneClientAloneKeepsItsOrder) {
  StartWith({1, 1, 1, 1});
  for (int i = 0; i < 4; ++i) AddOf(1);
  for (int i = 0; i < 10; ++i) Step(i * kTurn);
  EXPECT_EQ(Running(), (Clients{1, 1, 1, 1}));
  EXPECT_EQ(sequences_[3]->state, SequenceState::kRunning);
}

// One client after another takes a slot and leaves at once.
TEST_F(SlotTurnTest, ASlotIsKeptForATurnAtLeast) {
  StartWith({1, 1, 8, 9});
  Sequence* last = sequences_[1].get();
  Sequence* other = AddOf(2);
  Step(kTurn);
  EXPECT_EQ(last->state, SequenceState::kWaiting);
  scheduler_->Remove(other);
  Step(1.1 * kTurn);
  EXPECT_EQ(last->state, SequenceState::kRunning);
  other = AddOf(3);  // waits since 0
  Step(2.0 * kTurn);
  EXPECT_EQ(last->state, SequenceState::kRunning);
  Step(2.1 * kTurn);
  EXPECT_EQ(other->state, SequenceState::kRunning);
}

TEST_F(SlotTurnTest, PrioritiesComeFirst) {
  StartWith({1, 1, 1, 1});
  AddOf(2, /*priority=*/1);  // running sequences are more urgent
  Step(kTurn);
  EXPECT_EQ(Running(), (Clients{1, 1, 1, 1}));
  AddOf(1);  // so are waiting ones
  AddOf(3, /*priority=*/1);
  Step(2 * kTurn);
  EXPECT_EQ(Running(), (Clients{1, 1, 1, 1}));
  EXPECT_EQ(sequences_[3]->queue().running_since, 0);
  AddOf(4, /*priority=*/-1);
  Step(3 * kTurn);
  EXPECT_EQ(Running(), (Clients{1, 1, 1, 4}));
}

// Slow readers have a share of the slots, and are never due one.
TEST_F(SlotTurnTest, ASlowReaderTakesNoSlot) {
  StartWith({1, 1, 1, 1});
  scheduler_->Remove(sequences_[3].get());
  client_ = 2;
  Sequence* reader = Add(10, 0, 1);
  while (reader->state != SequenceState::kPaused) Step();
  AddOf(1);
  Step();
  Acknowledge(reader, 1);
  for (int i = 1; i < 4; ++i) {
    SCOPED_TRACE(i);
    Step(i * kTurn);
    EXPECT_EQ(Running(), (Clients{1, 1, 1, 1}));
  }
}

// The request waits for a prefix that another sequence computes.
TEST_F(SlotTurnTest, ARequestThatWaitsForAPrefixTakesNoSlot) {
  limits_.snapshot_slots = 1;
  Start();
  for (int i = 0; i < 3; ++i) {
    AddOf(1)->request.bypass_prefix_cache = true;
  }
  Sequence* computing = Add(1000);
  Plan();
  client_ = 2;
  Add(1000);
  Plan(kTurn);
  EXPECT_EQ(Running(), (Clients{1, 1, 1, 1}));
  EXPECT_GT(computing->remaining(), 1);
}

// A sequence that lost its pages for lack of a slot still comes back in its client's turn.
TEST_F(SlotTurnTest, WithoutASpareSlotPagesAreLost) {
  StartWith({1, 1, 1, 1}, /*num_slots=*/4);
  Sequence* last = sequences_[3].get();
  AddOf(1);
  Sequence* other = AddOf(2);
  Step(kTurn);
  EXPECT_EQ(other->state, SequenceState::kRunning);
  EXPECT_EQ(last->slot, -1);
  EXPECT_EQ(last->stats.preemptions, 1);
  scheduler_->Remove(other);
  Step(2 * kTurn);
  EXPECT_EQ(last->state, SequenceState::kRunning);
}

// The request is tried when it is due, and holds others back when it is rescued.
TEST_F(SlotTurnTest, ARequestWithoutPagesTakesNoSlot) {
  StartWith({1, 1, 1, 1});
  client_ = 2;
  Add(6200);  // 194 pages beside three page rows; 194 are free, including the last client's
  for (Seconds now = kTurn; now < kStarvation; now += 0.1) {
    SCOPED_TRACE(now);
    EXPECT_EQ(Ids(Step(now)).size(), 4u);
    EXPECT_EQ(Running(), (Clients{1, 1, 1, 1}));
    EXPECT_EQ(sequences_[3]->queue().running_since, kTurn);  // back in the same step
  }
  Step(kStarvation + 0.1);
  EXPECT_EQ(Running(), (Clients{1, 1, 1}));
}

}  // namespace
}  // namespace fox
