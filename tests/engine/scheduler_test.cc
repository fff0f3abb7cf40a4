// The scheduler's rules one by one, on sequences made by hand.
#include "engine/scheduler.h"

#include <deque>
#include <memory>
#include <tuple>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace fox {
namespace {

class SchedulerTest : public testing::Test {
 protected:
  SchedulerTest() {
    options_.priority_scheduling = true;
    limits_.num_pages = 100;
    limits_.lists_per_slot = 2;
    limits_.max_num_seqs = 4;
    limits_.max_model_len = 10000;
    limits_.max_num_batched_tokens = 256;
    limits_.max_logit_rows = 64;
    limits_.vocab_size = 10;
  }

  void Start() {
    live_.assign(100, 0);
    scheduler_ = std::make_unique<Scheduler>(limits_, times_);
  }

  Sequence* Add(int64_t prompt, int32_t priority = 0, int32_t flow_window = 0,
                int32_t prompt_logprobs = -1, const SamplingParams& sampling = {},
                const StopParams& stop = {}) {
    Request request;
    request.id = sequences_.size();
    request.prompt.assign(static_cast<size_t>(prompt), 1);
    request.stop = stop;
    request.stop.max_tokens = 1000;
    request.priority = priority;
    request.flow_window = flow_window;
    request.sampling = sampling;
    request.sampling.prompt_logprobs = prompt_logprobs;
    sequences_.push_back(std::make_unique<Sequence>(std::move(request), options_,
                                                    limits_.max_model_len,
                                                    static_cast<int64_t>(sequences_.size()), 0.0));
    scheduler_->Add(sequences_.back().get(), 0.0);
    return sequences_.back().get();
  }

  // Plans a step that stays in flight until Collect.
  Schedule Plan(Seconds now = 0) {
    Schedule schedule = scheduler_->Next(now);
    EXPECT_LE(schedule.plan.num_tokens(), limits_.max_num_batched_tokens);
    if (!schedule.plan.empty()) flights_.push_back(schedule);
    return schedule;
  }
  // Keeps the books of the pool, which frees `evicted` of each sequence's pages, and gives every
  // sequence that is due one token.
  void Collect(int64_t evicted = 0) {
    const Schedule schedule = std::move(flights_.front());
    flights_.pop_front();
    for (const int32_t slot : schedule.plan.release_slots) live_[static_cast<size_t>(slot)] = 0;
    StepResult result;
    for (size_t i = 0; i < schedule.sequences.size(); ++i) {
      Sequence* sequence = schedule.sequences[i];
      const PlannedSequence& planned = schedule.plan.sequences[i];
      const int64_t end = planned.position + static_cast<int64_t>(planned.token_ids.size());
      int64_t& live = live_[static_cast<size_t>(planned.slot)];
      live += limits_.lists_per_slot * (PagesFor(end) - PagesFor(planned.position)) - evicted;
      result.stats.emplace_back().pages_allocated = live;
      sequence->OnStepCollected(result.stats.back());
      if (planned.sample) --sequence->pending;
      if (end == static_cast<int64_t>(sequence->tokens.size())) {
        sequence->Append({1, 0, 0, {}});
        sequence->UpdatePause(0.0);
      }
    }
    result.free_pages = limits_.num_pages;
    for (const int64_t live : live_) result.free_pages -= live;
    EXPECT_GE(result.free_pages, 0) << schedule.plan.DebugString();
    scheduler_->Collect(result);
  }
  Schedule Step(Seconds now = 0) {
    Schedule schedule = Plan(now);
    if (!schedule.plan.empty()) Collect();
    return schedule;
  }

  void Acknowledge(Sequence* sequence, int64_t tokens) {
    sequence->acknowledged = tokens;
    sequence->UpdatePause(0.0);
    if (!sequence->paused()) scheduler_->Resume(sequence, 0.0);
  }

  static std::vector<size_t> Chunks(const Schedule& schedule) {
    std::vector<size_t> chunks;
    for (const PlannedSequence& s : schedule.plan.sequences) chunks.push_back(s.token_ids.size());
    return chunks;
  }
  static std::vector<RequestId> Ids(const Schedule& schedule) {
    std::vector<RequestId> ids;
    for (const PlannedSequence& s : schedule.plan.sequences) ids.push_back(s.id);
    return ids;
  }

  using Sizes = std::vector<size_t>;
  using IdList = std::vector<RequestId>;
  EngineOptions options_;
  ServiceTimes times_;
  ExecutorLimits limits_;
  std::vector<int64_t> live_ = std::vector<int64_t>(100, 0);  // pages of each slot
  std::deque<Schedule> flights_;
  std::vector<std::unique_ptr<Sequence>> sequences_;
  std::unique_ptr<Scheduler> scheduler_;
};

TEST_F(SchedulerTest, NothingToDoIsAnEmptyPlan) {
  Start();
  EXPECT_TRUE(Step().plan.empty());
}

TEST_F(SchedulerTest, ChunksEndAtPagesAndShareAStep) {
  Start();
  Add(300);
  Add(100);
  Schedule schedule = Step();  // 256 is a page end
  EXPECT_EQ(Chunks(schedule), (Sizes{256}));
  EXPECT_TRUE(schedule.plan.sequences[0].logit_rows.empty());
  schedule = Step();
  EXPECT_EQ(Chunks(schedule), (Sizes{100, 44}));  // the whole prompt first
  EXPECT_EQ(schedule.plan.sequences[1].position, 256);
  EXPECT_EQ(schedule.plan.sequences[1].logit_rows, std::vector<int32_t>{43});
  limits_.max_num_batched_tokens = 100;
  sequences_.clear();
  Start();
  Add(300);
  EXPECT_EQ(Chunks(Step()), Sizes{64});  // 100 is cut down to a page end
}

TEST_F(SchedulerTest, SmallBudgetsStillMakeProgress) {
  limits_.max_num_batched_tokens = 10;
  limits_.max_logit_rows = 3;
  Start();
  Add(25, 0, 0, 1);
  Schedule schedule = Step();
  EXPECT_EQ(Chunks(schedule), Sizes{3});  // each row is wanted
  EXPECT_EQ(schedule.plan.sequences[0].logit_rows, (std::vector<int32_t>{0, 1, 2}));
  sequences_[0]->prompt_logprobs_done = 20;  // as if preempted later
  EXPECT_EQ(Chunks(Step()), Sizes{10});
  EXPECT_EQ(Chunks(Step()), Sizes{10});
  schedule = Step();
  EXPECT_EQ(Chunks(schedule), Sizes{2});
  EXPECT_EQ(schedule.plan.sequences[0].logit_rows, (std::vector<int32_t>{0, 1}));
}

TEST_F(SchedulerTest, DecodesComeFirst) {
  Start();
  Add(10);
  Step();
  Add(500);
  const Schedule schedule = Step();
  EXPECT_EQ(Ids(schedule), (IdList{0, 1}));
  EXPECT_EQ(Chunks(schedule), (Sizes{1, 192}));
}

TEST_F(SchedulerTest, PriorityThenArrival) {
  limits_.max_num_seqs = 2;
  Start();
  Add(5, 3);
  Add(5, 1);
  Add(5, 1);
  EXPECT_EQ(Ids(Step()), (IdList{1, 2}));
  Step();
  scheduler_->Remove(sequences_[1].get());
  const Schedule schedule = Step();
  EXPECT_EQ(schedule.plan.release_slots, std::vector<int32_t>{0});
  EXPECT_EQ(Ids(schedule), (IdList{2, 0}));
  EXPECT_EQ(schedule.plan.sequences[1].slot, 0);  // used again in the same plan
}

TEST_F(SchedulerTest, FirstComeFirstServed) {
  options_.priority_scheduling = false;
  limits_.max_num_seqs = 1;
  Start();
  Add(5, 3);
  Add(5, 1);
  EXPECT_EQ(Ids(Step()), IdList{0});
}

TEST_F(SchedulerTest, AdmissionKeepsHeadroom) {
  limits_.num_pages = 6;
  Start();
  Add(64);  // 2 pages
  Add(64);  // 2 pages, and 2 of headroom for the first
  EXPECT_EQ(Ids(Step()), (IdList{0, 1}));
  sequences_.clear();
  limits_.num_pages = 5;
  Start();
  Add(64);
  Add(64);
  EXPECT_EQ(Ids(Step()), IdList{0});
}

TEST_F(SchedulerTest, ALongPromptStartsOnFreePages) {
  limits_.num_pages = 8;
  Start();
  Add(64);
  Sequence* longer = Add(500);
  const Schedule schedule = Step();
  EXPECT_EQ(Ids(schedule), (IdList{0, 1}));
  EXPECT_EQ(Chunks(schedule), (Sizes{64, 128}));  // and leaves the first its headroom
  EXPECT_TRUE(longer->by_chunks);
  Add(500);
  EXPECT_EQ(Ids(Step()), IdList{0});  // one at a time
}

TEST_F(SchedulerTest, WhoFindsNoRoomIsOvertakenForAWhile) {
  limits_.num_pages = 6;
  Start();
  Add(64);
  Add(64);
  EXPECT_EQ(Ids(Step()), (IdList{0, 1}));  // 2 pages are left, for the two
  Sequence* blocked = Add(64);
  EXPECT_EQ(Ids(Step(1.0)), IdList{0});  // the second has no room for its next token
  scheduler_->Remove(sequences_[1].get());
  Sequence* large = Add(200, -1);
  EXPECT_EQ(Ids(Step(2.0)), (IdList{0}));
  EXPECT_EQ(large->blocked_since, 2.0);
  EXPECT_EQ(blocked->slot, -1);
}

TEST_F(SchedulerTest, ALongPromptAloneGoesChunkByChunkUntilThePoolIsFull) {
  limits_.num_pages = 5;  // two page rows of 64
  Start();
  Sequence* sequence = Add(500);
  EXPECT_EQ(Chunks(Step()), Sizes{128});
  const Schedule schedule = Step();
  EXPECT_EQ(schedule.exhausted, std::vector<Sequence*>{sequence});
  EXPECT_TRUE(schedule.plan.sequences.empty());
  EXPECT_EQ(schedule.plan.release_slots.size(), 1u);
}

TEST_F(SchedulerTest, TheLastIsPreemptedAndComesBack) {
  limits_.num_pages = 6;
  Start();
  Sequence* first = Add(64);
  Sequence* second = Add(62);
  EXPECT_EQ(Ids(Step()), (IdList{0, 1}));
  Step();  // the first takes its second page row: 6 pages in use
  Step();
  EXPECT_EQ(second->computed, 64);
  const Schedule schedule = Step();  // the second wants another row and has nobody behind it
  EXPECT_EQ(Ids(schedule), IdList{0});
  EXPECT_EQ(schedule.preemptions, 0);
  EXPECT_GE(second->slot, 0);  // it waits with its pages
  while (first->computed < 128) Step();
  const Schedule preempting = Step();
  EXPECT_EQ(preempting.preemptions, 1);
  EXPECT_EQ(preempting.plan.release_slots.size(), 1u);
  EXPECT_EQ(second->slot, -1);
  EXPECT_EQ(second->stats.preemptions, 1);
  scheduler_->Remove(first);
  const Schedule again = Step();
  ASSERT_EQ(Ids(again), IdList{1});
  EXPECT_EQ(again.plan.sequences[0].position, 0);
  EXPECT_EQ(Chunks(again), Sizes{65});  // the prompt and what was generated
}

TEST_F(SchedulerTest, PausedSequencesRestAndLosePagesFirst) {
  limits_.num_pages = 6;
  Start();
  Sequence* paused = Add(60, 0, 1);
  Sequence* busy = Add(63);
  Step();
  ASSERT_TRUE(paused->paused());
  EXPECT_EQ(Ids(Step()), IdList{1});
  while (busy->computed < 128) EXPECT_EQ(Ids(Step()), IdList{1});
  EXPECT_GE(paused->slot, 0);
  EXPECT_EQ(Step().preemptions, 1);  // though the paused one came first
  EXPECT_EQ(paused->slot, -1);
  scheduler_->Remove(busy);
  EXPECT_TRUE(Step().plan.sequences.empty());  // paused: not admitted
  Acknowledge(paused, 1);
  EXPECT_EQ(Chunks(Step()), Sizes{61});
}

TEST_F(SchedulerTest, PausedSequencesGiveUpTheirSeatsAndKeepTheirPages) {
  limits_.max_num_seqs = 1;
  limits_.num_slots = 2;
  Start();
  Sequence* paused = Add(10, 0, 4);
  for (int i = 0; i < 4; ++i) Step();
  ASSERT_TRUE(paused->paused());
  Sequence* other = Add(10, 7);
  EXPECT_EQ(Ids(Step()), IdList{1});
  EXPECT_EQ(scheduler_->paused(), 1);
  EXPECT_GE(paused->slot, 0);
  Acknowledge(paused, 1);  // not half of the window
  EXPECT_TRUE(paused->paused());
  Acknowledge(paused, 2);
  EXPECT_EQ(Ids(Step()), IdList{1});  // the only seat is taken
  scheduler_->Remove(other);
  const Schedule schedule = Step();
  EXPECT_EQ(Ids(schedule), IdList{0});
  EXPECT_EQ(Chunks(schedule), Sizes{1});  // nothing is computed again
  EXPECT_EQ(paused->stats.preemptions, 0);
}

TEST_F(SchedulerTest, WithoutASpareSlotAPausedSequenceGivesItsPagesToo) {
  limits_.max_num_seqs = 1;
  Start();
  Sequence* paused = Add(10, 0, 1);
  Step();
  Add(10, 7);
  Add(10, 7);
  const Schedule schedule = Step();
  EXPECT_EQ(Ids(schedule), IdList{1});
  EXPECT_EQ(schedule.preemptions, 1);
  Acknowledge(paused, 1);
  scheduler_->Remove(sequences_[1].get());
  EXPECT_EQ(Ids(Step()), IdList{0});  // more urgent than the one that waits
}

TEST_F(SchedulerTest, RunsNoMoreThanCanDecodeInOneStep) {
  limits_.max_logit_rows = 2;
  Start();
  for (int i = 0; i < 4; ++i) Add(1);
  EXPECT_EQ(Ids(Step()), (IdList{0, 1}));
  EXPECT_EQ(Ids(Step()), (IdList{0, 1}));
}

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
  EXPECT_EQ(windowed->paused_since, 3.0);
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
  Start();
  Sequence* first = Add(128);
  Add(1);
  Plan();
  scheduler_->Remove(first);
  Plan();      // releases the 4 pages that the first has had so far
  Collect(1);  // but each of the two had lost one by then
  Add(256);    // 8 pages and 2 of headroom: one too many
  const Schedule schedule = Plan();
  EXPECT_EQ(Chunks(schedule), (Sizes{1, 192}));
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
