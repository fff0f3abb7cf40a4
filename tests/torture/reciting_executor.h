// RecitingExecutor: a StepExecutor whose model knows one thing: it repeats its prompt. What a slot
// was fed it keeps, so an answer that holds another request's words, or a gap, or a token twice,
// shows which state was mixed up. It counts pages like the real one.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/schedule/step_executor.h"

namespace fox {

class RecitingExecutor final : public StepExecutor {
 public:
  explicit RecitingExecutor(const ExecutorLimits& limits);

  const ExecutorLimits& limits() const override { return limits_; }
  absl::Status Submit(const StepPlan& plan) override;
  absl::StatusOr<StepResult> Collect() override { return std::move(result_); }

  // Of each step; any thread may set it.
  std::atomic<int> step_delay_us{0};

 private:
  // The greedy choice after `position` of a sequence: after bos, the bytes up to and with the first
  // '|' again and again; without one, spaces.
  int32_t Next(const std::vector<int32_t>& tokens, int64_t position) const;

  const ExecutorLimits limits_;
  std::vector<std::vector<int32_t>> tokens_;  // by slot
  int64_t used_pages_ = 0;
  std::vector<float> logits_;
  StepResult result_;  // of the submitted plan
};

// What it generates after `prompt`, which ends with its only '|'.
std::string Recitation(const std::string& prompt, size_t tokens);

}  // namespace fox
