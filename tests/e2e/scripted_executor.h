// ScriptedExecutor: a StepExecutor without a model. The next token is a fixed function of all that
// a slot was fed, so a test can say what a request must generate, and an answer that holds another
// request's words, or a gap, or a token twice, shows which state was mixed up. It counts pages like
// the real one and can be slow or fail.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "engine/request/step_executor.h"

namespace fox {

// Read by the engine's thread, written by a test's.
struct ExecutorScript {
  std::atomic<int> step_delay_us{0};
  std::atomic<bool> fail{false};
  std::mutex step;                      // a test that holds it makes steps hang
  std::atomic<bool> step_waits{false};  // for that
};

// A sequence's tokens so far, and the greedy choice after them: a lower-case letter, or a space
// after four.
class ScriptedText {
 public:
  ScriptedText() = default;
  explicit ScriptedText(const std::string& prompt);  // bos and the prompt

  void Feed(int32_t token);
  int64_t tokens() const { return tokens_; }
  int32_t Next() const { return tokens_ % 5 == 0 ? ' ' : 'a' + static_cast<int32_t>(hash_ % 26); }
  // The next token, which is fed, too.
  char Take();

 private:
  int64_t tokens_ = 0;
  uint32_t hash_ = 0;  // of all of them
};

class ScriptedExecutor final : public StepExecutor {
 public:
  ScriptedExecutor(const ExecutorLimits& limits, std::shared_ptr<ExecutorScript> script);

  const ExecutorLimits& limits() const override { return limits_; }
  absl::Status Submit(const StepPlan& plan) override;
  absl::StatusOr<StepResult> Collect() override { return std::move(result_); }

 private:
  absl::StatusOr<StepResult> Execute(const StepPlan& plan);
  int64_t PagesOf(const ScriptedText& text) const;

  const ExecutorLimits limits_;
  const std::shared_ptr<ExecutorScript> script_;
  std::map<int32_t, ScriptedText> texts_;  // by slot
  int64_t used_pages_ = 0;
  std::vector<float> logits_;
  absl::StatusOr<StepResult> result_;  // of the submitted plan
};

}  // namespace fox
