// SchedulerTest: a scheduler over sequences made by hand, and the books of its pool.
#pragma once

#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "engine/schedule/scheduler.h"
#include "gtest/gtest.h"

namespace fox {

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
    scheduler_ = std::make_unique<Scheduler>(limits_, times_, options_);
  }

  Sequence* Add(int64_t prompt, int32_t priority = 0, int32_t flow_window = 0,
                int32_t prompt_logprobs = -1, const SamplingParams& sampling = {},
                const StopParams& stop = {}) {
    Request request;
    request.id = sequences_.size();
    request.prompt.assign(static_cast<size_t>(prompt), 1);
    request.stop = stop;
    request.stop.max_tokens = 1000;
    request.client = client_;
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

  // Admission counts on the prompts alone.
  void ExpectShortAnswers() {
    for (int i = 0; i < 200; ++i) times_.RecordEnd(1, 1000, 1.0);
  }

  // Plans a step that stays in flight until Collect.
  Schedule Plan(Seconds now = 0) {
    Schedule schedule = scheduler_->Next(now);
    scheduler_->Check();
    for (const auto& sequence : sequences_) sequence->Check();
    EXPECT_LE(schedule.plan.num_tokens(), limits_.max_num_batched_tokens);
    if (!schedule.plan.empty()) flights_.push_back(schedule);
    return schedule;
  }
  // Collects the oldest plan. The pool frees `evicted` of each sequence's pages, and every sequence
  // that samples gets a token.
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
      AcpStats& stats = result.stats.emplace_back();
      stats.pages_allocated = limits_.lists_per_slot * PagesFor(end);
      stats.pages_evicted = stats.pages_allocated - live;
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
    scheduler_->Collect(schedule.plan, result);
  }
  Schedule Step(Seconds now = 0) {
    Schedule schedule = Plan(now);
    if (!schedule.plan.empty()) Collect();
    return schedule;
  }

  void Acknowledge(Sequence* sequence, int64_t tokens) {
    sequence->reader.Acknowledge(tokens - sequence->reader.acknowledged());
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
  uint64_t client_ = 0;  // of the sequences that Add makes
  EngineOptions options_;
  ServiceTimes times_;
  ExecutorLimits limits_;
  std::vector<int64_t> live_ = std::vector<int64_t>(100, 0);  // pages of each slot
  std::deque<Schedule> flights_;
  std::vector<std::unique_ptr<Sequence>> sequences_;
  std::unique_ptr<Scheduler> scheduler_;
};

}  // namespace fox
