// Chunks where an executor cares about them (ExecutorLimits::chunk_multiple): where they end, what
// comes alone, what waits; prompts beside decodes (max_mixed_tokens); pages of snapshots.
#include <algorithm>
#include <vector>

#include "gmock/gmock.h"
#include "tests/engine/schedule/scheduler_fixture.h"

namespace fox {
namespace {

class SchedulerChunksTest : public SchedulerTest {
 protected:
  SchedulerChunksTest() {
    limits_.chunk_multiple = 128;
    limits_.num_pages = 1000;
    limits_.max_num_batched_tokens = 1024;
    limits_.max_logit_rows = 256;
  }

  // The chunks of a prompt that runs alone, until its first token.
  Sizes ChunksOf(int64_t prompt, int32_t prompt_logprobs = -1) {
    sequences_.clear();
    Start();
    Sequence* sequence = Add(prompt, 0, 0, prompt_logprobs);
    Sizes chunks;
    while (sequence->produced() == 0 && chunks.size() < 100) {
      const Schedule schedule = Step();
      for (const size_t chunk : Chunks(schedule)) chunks.push_back(chunk);
    }
    return chunks;
  }
};

TEST_F(SchedulerChunksTest, ChunksEndAtMultiplesOrWithThePrompt) {
  limits_.max_num_batched_tokens = 300;
  EXPECT_EQ(ChunksOf(1000), (Sizes{256, 256, 256, 232}));
  EXPECT_EQ(ChunksOf(300), Sizes{300});
  EXPECT_EQ(ChunksOf(512), (Sizes{256, 256}));
  EXPECT_EQ(ChunksOf(2), Sizes{2});
  EXPECT_EQ(ChunksOf(1), Sizes{1});
}

TEST_F(SchedulerChunksTest, NoTokenOfAPromptIsLeftAlone) {
  limits_.max_num_seqs = 1;
  limits_.max_num_batched_tokens = 256;
  EXPECT_EQ(ChunksOf(513), (Sizes{256, 128, 129}));
  limits_.max_num_batched_tokens = 129;
  EXPECT_EQ(ChunksOf(257), (Sizes{128, 129}));
  EXPECT_EQ(ChunksOf(129), Sizes{129});
  EXPECT_EQ(ChunksOf(258), (Sizes{128, 128, 2}));
}

// As many run as leave room for the least chunk of one of them.
TEST_F(SchedulerChunksTest, SeatsLeaveRoomForAChunk) {
  limits_.max_num_batched_tokens = 131;
  Start();
  EXPECT_EQ(scheduler_->max_running(), 3);
  for (int i = 0; i < 2; ++i) Add(2);
  Step();
  Add(385);
  EXPECT_EQ(Chunks(Step()), (Sizes{1, 1, 128}));
  EXPECT_EQ(Chunks(Step()), (Sizes{1, 1, 128}));
  EXPECT_EQ(Chunks(Step()), (Sizes{1, 1, 129}));
}

TEST_F(SchedulerChunksTest, AShortStepStillHoldsAChunk) {
  options_.max_step_seconds = 1e-3;
  Start();
  for (int i = 0; i < 20; ++i) times_.RecordStep(1000, 0, 1.0);
  Add(500);
  Add(500, 1);
  for (int i = 0; i < 8; ++i) EXPECT_THAT(Chunks(Step()), testing::Contains(testing::Gt(1u)));
  EXPECT_GT(sequences_[0]->produced(), 0);
  EXPECT_GT(sequences_[1]->produced(), 0);
}

// Two page rows for the first chunk of each, and a third for what comes behind.
TEST_F(SchedulerChunksTest, PagesOfAWholeChunkArePromised) {
  limits_.num_pages = 10;
  options_.kv_admission = KvAdmission::kWorstCase;
  Start();
  Sequence* sequence = Add(320);
  EXPECT_EQ(Chunks(Step()), Sizes{320});
  sequences_.clear();
  limits_.num_pages = 8;  // four rows of five
  Start();
  sequence = Add(320);
  EXPECT_EQ(Chunks(Step()), Sizes{256});
  EXPECT_EQ(Step().does_not_fit, std::vector<Sequence*>{sequence});
  sequences_.clear();
  limits_.num_pages = 3;  // not even a chunk
  Start();
  sequence = Add(320);
  EXPECT_EQ(Step().does_not_fit, std::vector<Sequence*>{sequence});
}

TEST_F(SchedulerChunksTest, PromptsBesideDecodesAreCut) {
  limits_.max_mixed_tokens = 300;
  Start();
  Add(4000);
  EXPECT_EQ(Chunks(Step()), Sizes{1024});
  Sequence* other = Add(20);
  EXPECT_EQ(Chunks(Step()), (Sizes{20, 896}));
  EXPECT_EQ(Chunks(Step()), (Sizes{1, 256}));
  Add(280);
  EXPECT_EQ(Chunks(Step()), (Sizes{1, 256}));
  scheduler_->Remove(other);
  EXPECT_EQ(Chunks(Step()), (Sizes{280, 640}));  // none decodes
}

// Of 1e-4 seconds a prompt token and 1e-2 a decoded one.
TEST_F(SchedulerChunksTest, WhatWouldBeReplayedIsDearer) {
  limits_.num_pages = 14;
  limits_.swap_bytes = 100000;
  limits_.swap_state_bytes = 10;
  limits_.swap_page_bytes = 1;
  limits_.swap_rate = 200;  // 18 bytes there and back: 0.18 s
  options_.kv_admission = KvAdmission::kWorstCase;
  for (const int64_t multiple : {1, 128}) {
    limits_.chunk_multiple = multiple;
    sequences_.clear();
    times_ = {};
    Start();
    for (int i = 0; i < 40; ++i) {
      times_.RecordStep(1000, 0, 0.1);
      times_.RecordStep(0, 10, 0.1);
    }
    Add(150);
    Sequence* second = Add(180);
    Schedule schedule;
    for (int i = 0; i < 100 && schedule.preemptions == 0; ++i) schedule = Step();
    ASSERT_EQ(schedule.preemptions, 1);
    EXPECT_GT(second->generated(), 20);
    EXPECT_EQ(schedule.plan.swap_outs.size(), multiple == 1 ? 0u : 1u);
  }
}

class SchedulerSnapshotsTest : public SchedulerChunksTest {
 protected:
  SchedulerSnapshotsTest() {
    limits_.snapshot_slots = 1;
    options_.prefix_cache_share = 1;
    options_.prefix_cache_interval = 128;
    sole_.resize(static_cast<size_t>(limits_.slots() + 1));
    amend_ = [this](const StepPlan& plan, StepResult* result) {
      if (!plan.snapshots.empty()) shared_ = kept_;
      if (!plan.drop_snapshots.empty()) shared_ = 0;
      for (size_t slot = 0; slot + 1 < sole_.size(); ++slot) {
        sole_[slot] = static_cast<int32_t>(live_[slot] > 0 ? live_[slot] - shared_ : 0);
      }
      result->sole_pages = sole_.data();
    };
  }

  // The first chunk of the first, of which so many pages are kept, and the next step, which
  // leaves a snapshot of them.
  void LeaveSnapshot(int64_t evicted) {
    Plan();
    Collect(evicted);
    kept_ = live_[0];
    EXPECT_EQ(Step().plan.snapshots.size(), 1u);
  }

  std::vector<int32_t> sole_;
  int64_t kept_ = 0, shared_ = 0;
};

// Of five pages a paused one has two for itself and shares three with a snapshot; a chunk takes
// four.
TEST_F(SchedulerSnapshotsTest, TheirPagesAndThoseOfWhoRestsCountTogether) {
  limits_.num_pages = 5;
  Start();
  Sequence* resting = Add(156, 0, 1);
  LeaveSnapshot(/*evicted=*/1);
  Sequence* next = Add(300);
  next->request.bypass_prefix_cache = true;
  EXPECT_EQ(Step().plan.drop_snapshots.size(), 1u);
  EXPECT_EQ(resting->state, SequenceState::kPaused);
  EXPECT_EQ(Chunks(Step()), Sizes{128});
  EXPECT_EQ(resting->slot, -1);
}

// Of three pages it has two, which it needs, shares the third, and wants two more.
TEST_F(SchedulerSnapshotsTest, WhoHasThePoolToItselfDoesNotWaitForThem) {
  limits_.num_pages = 3;
  limits_.chunk_multiple = 64;
  Start();
  Sequence* sequence = Add(64, 0, 65);
  LeaveSnapshot(/*evicted=*/1);
  while (!sequence->paused()) Step();
  EXPECT_EQ(sequence->computed, 128);
  Step();
  EXPECT_EQ(sequence->state, SequenceState::kPaused);
  Acknowledge(sequence, 40);
  EXPECT_EQ(Step().does_not_fit, std::vector<Sequence*>{sequence});
}

// The first two of three share the pages that the second has.
class SchedulerSharingTest : public SchedulerChunksTest {
 protected:
  SchedulerSharingTest() {
    sole_.resize(static_cast<size_t>(limits_.slots()));
    amend_ = [this](const StepPlan&, StepResult* result) {
      const int64_t shared = live_[0] > 0 ? live_[1] : 0;
      result->free_pages += shared;
      for (size_t slot = 0; slot < sole_.size(); ++slot) {
        sole_[slot] = static_cast<int32_t>(live_[slot] - (slot < 2 ? shared : 0));
      }
      result->sole_pages = sole_.data();
    };
  }

  // Two that rest, of two pages each; the second keeps so many.
  void LetTwoRest(int64_t kept) {
    Start();
    Add(60, 0, 1);
    Step();
    Add(60, 0, 1);
    Plan();
    Collect(2 - kept);
  }
  // That both give up their pages in one plan, and the one that lacked some goes on with the next.
  void ExpectThatBothAreWaitedFor(size_t chunk) {
    const Schedule releases = Step();
    EXPECT_EQ(releases.plan.release_slots.size(), 2u);
    EXPECT_TRUE(releases.does_not_fit.empty());
    EXPECT_EQ(Chunks(Step()), Sizes{chunk});
  }

  std::vector<int32_t> sole_;
};

TEST_F(SchedulerSharingTest, AChunkThatFindsNoRoomWaitsForThem) {
  limits_.num_pages = 8;
  LetTwoRest(2);
  Add(200);
  EXPECT_EQ(Chunks(Step()), Sizes{128});
  ExpectThatBothAreWaitedFor(72);
}

TEST_F(SchedulerSharingTest, WhoComesBackWithItsPagesWaitsForThem) {
  limits_.num_pages = 4;
  LetTwoRest(1);
  Sequence* next = Add(60, 0, 5);
  while (!next->paused()) Step();
  EXPECT_EQ(next->computed, 64);
  Step();
  Acknowledge(next, 5);
  ExpectThatBothAreWaitedFor(1);
}

// The executor says so only when a plan that releases all slots has run.
TEST_F(SchedulerChunksTest, PagesThatAreFreeAndNotKnownToBeCount) {
  limits_.num_pages = 5;
  amend_ = [](const StepPlan&, StepResult* result) {
    result->free_pages = std::max<int64_t>(0, result->free_pages - 3);
  };
  Start();
  Sequence* resting = Add(20, 0, 1);
  Step();
  Add(300);
  Step();
  EXPECT_EQ(resting->slot, -1);
  EXPECT_EQ(Chunks(Step()), Sizes{128});
}

}  // namespace
}  // namespace fox
