// StepMetrics: how long the engine's steps take and how many tokens they feed.
#pragma once

#include <deque>

#include "engine/request/step_observer.h"
#include "server/calls/call_metrics.h"

namespace fox {

// Observed on the engine's thread; the histograms are read by any.
class StepMetrics : public StepObserver {
 public:
  StepMetrics();

  void BeforeSubmit(const StepPlan& plan) override;
  void AfterCollect(const StepPlan& plan, const StepResult& result) override;

  // Seconds from a plan's submission, or from the end of the one before if that was later, until it
  // was collected. Plans that feed a prompt, and those that only decode.
  Histogram prefill_seconds, decode_seconds;
  Histogram tokens;

 private:
  std::deque<Seconds> submitted_;  // of the plans in flight
  Seconds collected_ = 0;
};

}  // namespace fox
