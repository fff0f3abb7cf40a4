// The scheduler with plans in flight.
#include <tuple>

#include "gmock/gmock.h"
#include "tests/engine/schedule/scheduler_fixture.h"

namespace fox {
namespace {

// Plans in flight: the executor samples, and the host has not read.
class PipelinedSchedulerTest : public SchedulerTest {
 protected:
  PipelinedSchedulerTest() {
    limits_.depth = 2;
    limits_.samples_on_device = true;
  }
};

TEST_F(PipelinedSchedulerTest, ASampledTokenIsFedUnseen) {
  Start();
  Sequence* sequence = Add(10);
  Schedule schedule = Plan();
  ASSERT_TRUE(schedule.plan.sequences[0].sample);
  EXPECT_EQ(schedule.plan.sequences[0].sample->position, 10u);
  schedule = Plan();
  EXPECT_EQ(schedule.plan.sequences[0].token_ids, std::vector<int32_t>{kLastSampledToken});
  EXPECT_EQ(schedule.plan.sequences[0].position, 10);
  EXPECT_EQ(schedule.plan.sequences[0].sample->position, 11u);
  EXPECT_EQ(sequence->pending, 2);
  EXPECT_EQ(sequence->generated(), 0);
  Collect();
  Collect();
  EXPECT_EQ(sequence->generated(), 2);
  EXPECT_EQ(Plan().plan.sequences[0].token_ids, std::vector<int32_t>{1});  // known again
}

TEST_F(PipelinedSchedulerTest, WhatTheHostSamplesWaitsForIt) {
  Start();
  Add(10)->request.sampling.logprob_token_ids = {3};
  Add(10)->request.sampling.logprobs = kMaxSampledLogprobs + 1;
  Add(10, 0, 0, 1);  // rows of its prompt
  for (const PlannedSequence& planned : Plan().plan.sequences) EXPECT_FALSE(planned.sample);
  EXPECT_TRUE(Plan().plan.empty());
  Collect();
  const Schedule schedule = Plan();
  EXPECT_EQ(Ids(schedule), (IdList{0, 1, 2}));
  EXPECT_FALSE(schedule.plan.sequences[0].sample);
  EXPECT_TRUE(schedule.plan.sequences[2].sample);  // the prompt is done
}

// (id, bias, bits) of a plan's only token states.
std::vector<std::tuple<int32_t, float, uint32_t>> StatesIn(const Schedule& schedule) {
  std::vector<std::tuple<int32_t, float, uint32_t>> states;
  EXPECT_EQ(schedule.plan.penalty_state.size(), 1u);
  for (const SlotTokens& slot : schedule.plan.penalty_state) {
    EXPECT_EQ(slot.slot, 0);
    for (const PenaltyEntry& e : slot.entries)
      states.emplace_back(e.id, e.state.bias, e.state.bits);
  }
  return states;
}

TEST_F(PipelinedSchedulerTest, PenaltyStateComesWithTheFirstSample) {
  Start();
  SamplingParams sampling;
  sampling.repetition_penalty = 2;
  sampling.presence_penalty = 0.5f;
  sampling.frequency_penalty = 0.25f;
  sampling.logit_bias = {{3, 1.5f}, {1, -1.0f}};
  sampling.allowed_token_ids = {1, 7};
  Add(300, 0, 0, -1, sampling);
  Schedule schedule = Plan();
  EXPECT_FALSE(schedule.plan.sequences[0].sample);  // more of the prompt to come
  EXPECT_TRUE(schedule.plan.penalty_state.empty());
  schedule = Plan();
  const LogitsProcessorParams logits_processor =
      schedule.plan.sequences[0].sample.value().logits_processor;
  EXPECT_TRUE(logits_processor.on);
  EXPECT_TRUE(logits_processor.only_allowed);
  EXPECT_EQ(logits_processor.repetition_penalty, 2.0f);
  EXPECT_EQ(logits_processor.presence_penalty, 0.5f);
  EXPECT_EQ(logits_processor.frequency_penalty, 0.25f);
  EXPECT_EQ(logits_processor.stops_from, 0u);
  EXPECT_THAT(StatesIn(schedule),
              testing::UnorderedElementsAre(std::tuple(3, 1.5f, 0u), std::tuple(1, -1.0f, 0u),
                                            std::tuple(1, 0.0f, kTokenAllowed),
                                            std::tuple(7, 0.0f, kTokenAllowed),
                                            std::tuple(1, 0.0f, kTokenInPrompt)));
  schedule = Plan();
  EXPECT_EQ(schedule.plan.sequences[0].token_ids, std::vector<int32_t>{kLastSampledToken});
  EXPECT_TRUE(schedule.plan.sequences[0].sample->logits_processor.on);
  EXPECT_TRUE(schedule.plan.penalty_state.empty());  // the executor has counted
}

TEST_F(PipelinedSchedulerTest, StopsAreMaskedUpToMinTokens) {
  Start();
  StopParams stop;
  stop.min_tokens = 2;
  stop.stop_token_ids = {4, 6};
  Add(10, 0, 0, -1, {}, stop);
  Schedule schedule = Plan();
  EXPECT_THAT(StatesIn(schedule), testing::ElementsAre(std::tuple(4, 0.0f, kTokenStops),
                                                       std::tuple(6, 0.0f, kTokenStops)));
  for (int produced = 0; produced < 4; ++produced) {
    const SampleRow& sample = schedule.plan.sequences[0].sample.value();
    EXPECT_EQ(sample.position, 10u + static_cast<uint64_t>(produced));
    EXPECT_EQ(sample.logits_processor.on, produced < 2);
    EXPECT_EQ(sample.position < sample.logits_processor.stops_from, produced < 2);
    if (produced > 0) Collect();
    schedule = Plan();
    EXPECT_TRUE(schedule.plan.penalty_state.empty());
  }
}

TEST_F(PipelinedSchedulerTest, APreemptedSequenceBringsItsCounts) {
  limits_.num_pages = 6;
  Start();
  Sequence* first = Add(62);
  SamplingParams sampling;
  sampling.frequency_penalty = 1;
  Sequence* second = Add(1, 0, 5, -1, sampling);
  while (first->computed < 127) Step();
  EXPECT_TRUE(second->has_penalty_state);
  Acknowledge(second, 5);
  Plan();
  EXPECT_EQ(Plan().preemptions, 1);
  EXPECT_FALSE(second->has_penalty_state);
  scheduler_->Remove(first);
  EXPECT_TRUE(Plan().plan.sequences.empty());
  Collect();  // its sixth token
  const Schedule again = Plan();
  ASSERT_EQ(Ids(again), IdList{1});
  EXPECT_EQ(StatesIn(again).size(), 1u);
  EXPECT_EQ(StatesIn(again)[0], std::tuple(1, 0.0f, 6u));
}

TEST_F(PipelinedSchedulerTest, PendingTokensCountForLimitsAndWindows) {
  Start();
  Sequence* last = Add(10);
  last->max_tokens = 2;
  Sequence* windowed = Add(10, 0, 1);
  EXPECT_EQ(Ids(Plan(3.0)), (IdList{0, 1}));
  EXPECT_TRUE(windowed->paused());
  EXPECT_EQ(windowed->reader.paused_since(), 3.0);
  EXPECT_EQ(Ids(Plan()), IdList{0});
  EXPECT_TRUE(Plan().plan.empty());  // both of two are sampled
  EXPECT_EQ(last->produced(), 2);
}

TEST_F(PipelinedSchedulerTest, PagesOfPlansInFlightAreSpent) {
  limits_.num_pages = 5;
  Start();
  Add(64);
  EXPECT_EQ(Chunks(Plan()), Sizes{64});
  EXPECT_EQ(Chunks(Plan()), Sizes{1});  // its second page row: one page is left
  Collect();
  Sequence* sequence = sequences_[0].get();
  while (sequence->computed < 128) {
    Plan();
    Collect();
  }
  EXPECT_TRUE(Plan().plan.empty());  // no page, but a plan in flight may evict
  EXPECT_GE(sequence->slot, 0);
  Collect(1);
  EXPECT_EQ(Chunks(Plan()), Sizes{1});
}

TEST_F(PipelinedSchedulerTest, AReleasedSlotGivesWhatItHolds) {
  limits_.num_pages = 8;
  Start();
  Sequence* first = Add(64);
  Add(1);
  Plan();
  Plan();  // the first takes its second page row: 2 of 8 are left
  Collect();
  scheduler_->Remove(first);
  Add(128);  // 4 pages, and 2 of headroom for the other: those of both plans come back
  EXPECT_EQ(Ids(Plan()), (IdList{1, 2}));
}

TEST_F(PipelinedSchedulerTest, PagesEvictedInFlightAreNotCountedTwice) {
  limits_.num_pages = 10;
  options_.kv_admission = KvAdmission::kWorstCase;
  Start();
  Sequence* first = Add(128);
  Add(1);
  Plan();
  scheduler_->Remove(first);
  Plan();      // releases the 4 pages that the first has had so far
  Collect(1);  // but each of the two had lost one by then
  Add(256);    // 8 pages and 2 of headroom: one too many
  EXPECT_EQ(Chunks(Plan()), Sizes{1});
}

TEST_F(PipelinedSchedulerTest, APreemptedSequenceComesBackWithItsPendingToken) {
  limits_.num_pages = 6;
  Start();
  Sequence* first = Add(62);
  Sequence* second = Add(1, 0, 5);
  while (first->computed < 127) Step();  // the pool is full, and the second paused in between
  Acknowledge(second, 5);
  EXPECT_EQ(Ids(Plan()), (IdList{0, 1}));
  const Schedule preempting = Plan();  // the first takes a page row
  EXPECT_EQ(preempting.preemptions, 1);
  EXPECT_EQ(Ids(preempting), IdList{0});
  EXPECT_EQ(second->slot, -1);
  EXPECT_EQ(second->pending, 1);
  scheduler_->Remove(first);
  EXPECT_TRUE(Plan().plan.sequences.empty());  // its last token is not known yet
  Collect();
  EXPECT_EQ(second->generated(), 6);
  const Schedule again = Plan();
  ASSERT_EQ(Ids(again), IdList{1});
  EXPECT_EQ(Chunks(again), Sizes{7});
}

}  // namespace
}  // namespace fox
