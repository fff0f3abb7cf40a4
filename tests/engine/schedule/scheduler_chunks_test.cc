// Chunks where an executor cares about them (ExecutorLimits::chunk_multiple): where they end, what
// comes alone; prompts beside decodes (max_mixed_tokens).
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

}  // namespace
}  // namespace fox
