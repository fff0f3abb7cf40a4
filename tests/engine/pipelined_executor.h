// PipelinedExecutor: makes an executor of depth 1 look like a GPU: two plans in flight, tokens
// sampled and fed without the host. A plan is computed when it is submitted and seen when it is
// collected.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <utility>
#include <vector>

#include "engine/request/sampler.h"
#include "engine/request/step_executor.h"
#include "tests/engine/sim/slot_sampler.h"

namespace fox {

class PipelinedExecutor final : public StepExecutor {
 public:
  // `inner` must outlive it.
  explicit PipelinedExecutor(StepExecutor& inner)
      : inner_(inner), limits_(inner.limits()), sampler_(limits_.vocab_size) {
    limits_.depth = 2;
    limits_.samples_on_device = true;
  }

  const ExecutorLimits& limits() const override { return limits_; }
  int64_t fed_samples() const { return fed_samples_; }

  absl::Status Submit(const StepPlan& plan) override {
    for (const SlotTokens& states : plan.penalty_state) {
      slots_[states.slot].SetPenaltyState(states.entries);
    }
    StepPlan inner_plan = plan;
    inner_plan.penalty_state.clear();
    for (PlannedSequence& sequence : inner_plan.sequences) {
      sequence.sample.reset();
      if (sequence.token_ids.front() != kLastSampledToken) continue;
      sequence.token_ids.front() = sampled_.at(sequence.slot);
      ++fed_samples_;
    }
    absl::StatusOr<StepResult> result = inner_.Run(inner_plan);
    if (!result.ok()) return result.status();
    Computed& computed = computed_.emplace_back();
    computed.result = *std::move(result);
    Take(plan, &computed);
    return absl::OkStatus();
  }

  absl::Status SetMasks(const std::vector<const uint32_t*>& masks) override {
    Computed& computed = computed_.back();
    if (computed_.size() > 1 || masks.size() != computed.masked.size()) {
      return absl::InternalError("masks that no plan waits for");
    }
    for (size_t k = 0; k < masks.size(); ++k) {
      const auto& [i, sequence] = computed.masked[k];
      if (masks[k] == nullptr) continue;
      computed.result.sampled[i] = Sample(sequence, computed.logits[i].data(), masks[k]);
    }
    return absl::OkStatus();
  }

  absl::StatusOr<StepResult> Collect() override {
    collected_ = std::move(computed_.front());
    computed_.pop_front();
    return std::move(collected_.result);
  }

 private:
  struct Computed {
    StepResult result;
    std::vector<std::vector<float>> logits;                  // [sequences]
    std::vector<std::vector<SampleRecord>> scores;           // [sequences]
    std::vector<std::pair<size_t, PlannedSequence>> masked;  // and where in the plan
    std::vector<int32_t> sole_pages;
  };

  // Samples, and keeps logits, scores and counts beyond the next plan.
  void Take(const StepPlan& plan, Computed* computed) {
    StepResult& result = computed->result;
    if (result.sole_pages != nullptr) {
      computed->sole_pages.assign(result.sole_pages,
                                  result.sole_pages + limits_.slots() + limits_.snapshot_slots);
      result.sole_pages = computed->sole_pages.data();
    }
    result.sampled.clear();
    const std::vector<const SampleRecord*> scores = std::exchange(result.scores, {});
    computed->logits.resize(plan.sequences.size());
    computed->scores.resize(plan.sequences.size());
    const size_t vocab = static_cast<size_t>(limits_.vocab_size);
    for (size_t i = 0; i < plan.sequences.size(); ++i) {
      const PlannedSequence& sequence = plan.sequences[i];
      const float* logits = std::exchange(result.logits[i], nullptr);
      const size_t scored = sequence.scores.size();
      if (scored > 0) computed->scores[i].assign(scores[i], scores[i] + scored);
      result.scores.push_back(computed->scores[i].data());
      const size_t rows = sequence.logit_rows.size();
      if (sequence.sample && !sequence.masked()) {
        result.sampled.push_back(Sample(sequence, logits + (rows - 1) * vocab));
        continue;
      }
      result.sampled.emplace_back(SampledToken());
      if (rows == 0) continue;
      computed->logits[i].assign(logits, logits + rows * vocab);
      if (!sequence.sample) {
        result.logits[i] = computed->logits[i].data();
        continue;
      }
      computed->masked.emplace_back(i, sequence);
      result.sampled.back() = absl::InternalError("no mask came");
      sampled_.erase(sequence.slot);
    }
  }

  absl::StatusOr<SampledToken> Sample(const PlannedSequence& sequence, const float* logits,
                                      const uint32_t* mask = nullptr) {
    auto token = slots_[sequence.slot].Sample(*sequence.sample, logits, sampler_, mask);
    sampled_[sequence.slot] = token.ok() ? token->id : 0;
    return token;
  }

  StepExecutor& inner_;
  ExecutorLimits limits_;
  Sampler sampler_;
  std::map<int32_t, SlotSampler> slots_;
  std::map<int32_t, int32_t> sampled_;  // by slot
  std::deque<Computed> computed_;       // the oldest first
  Computed collected_;                  // its logits are still being read
  int64_t fed_samples_ = 0;
};

}  // namespace fox
