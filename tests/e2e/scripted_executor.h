// ScriptedExecutor: a StepExecutor without a model. The next token after `t` at position p is a
// fixed function of both, so a test can say what a request must generate. It counts pages like the
// real one and can be slow or fail.
#pragma once

#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "engine/schedule/step_executor.h"

namespace fox {

// Read by the engine's thread, written by a test's.
struct ExecutorScript {
  std::atomic<int> step_delay_us{0};
  std::atomic<bool> fail{false};
  std::mutex step;                      // a test that holds it makes steps hang
  std::atomic<bool> step_waits{false};  // for that
};

class ScriptedExecutor final : public StepExecutor {
 public:
  ScriptedExecutor(const ExecutorLimits& limits, std::shared_ptr<ExecutorScript> script);

  const ExecutorLimits& limits() const override { return limits_; }
  absl::Status Submit(const StepPlan& plan) override;
  absl::StatusOr<StepResult> Collect() override { return std::move(result_); }

  // The greedy choice after `token` at `position`: a lower-case letter, or a space after four.
  static int32_t NextToken(int32_t token, int64_t position);

 private:
  absl::StatusOr<StepResult> Execute(const StepPlan& plan);

  const ExecutorLimits limits_;
  const std::shared_ptr<ExecutorScript> script_;
  std::map<int32_t, int64_t> tokens_;  // by slot
  std::vector<float> logits_;
  absl::StatusOr<StepResult> result_;  // of the submitted plan
};

}  // namespace fox
