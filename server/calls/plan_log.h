// PlanLog: every plan of a running engine as a line of the log, for `--log-level debug`.
#pragma once

#include "engine/step_observer.h"
#include "server/process/log.h"

namespace fox {

class PlanLog : public StepObserver {
 public:
  void BeforeSubmit(const StepPlan& plan) override {
    Log(LogLevel::kDebug, "step", {{"plan", plan.DebugString()}});
  }
};

}  // namespace fox
