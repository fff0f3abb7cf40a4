// StepMetrics: histograms of the engine's steps: their times and their tokens.
#pragma once

#include <deque>

#include "engine/request/step_observer.h"
#include "prometheus/histogram.h"

namespace fox {

// Observes on the engine's thread. Any thread may read the histograms.
class StepMetrics : public StepObserver {
 public:
  StepMetrics();

  void BeforeSubmit(const StepPlan& plan) override;
  void AfterCollect(const StepPlan& plan, const StepResult& result) override;

  // Seconds of a step: from its submission, or from the end of the previous step if that was later,
  // to its end. A step with tokens of a prompt counts as prefill, any other as decode.
  prometheus::Histogram prefill_seconds, decode_seconds;
  prometheus::Histogram tokens;  // of a step

 private:
  std::deque<Seconds> submitted_;  // of each plan in flight, the oldest first
  Seconds collected_ = 0;
};

}  // namespace fox
