// StepObserver: sees the plans and the ends of requests of a running engine, and cannot change
// them.
#pragma once

#include "engine/request/request.h"
#include "engine/request/step_executor.h"
#include "engine/request/step_plan.h"

namespace fox {

// All calls come from the thread that calls Engine::Step, which waits for them. The engine reads no
// clock: an observer that wants times takes them itself.
class StepObserver {
 public:
  virtual ~StepObserver() = default;

  // Before and after StepExecutor::Submit. After it the plan is done on a CPU, or enqueued on a
  // GPU.
  virtual void BeforeSubmit(const StepPlan& plan) { static_cast<void>(plan); }
  virtual void AfterSubmit(const StepPlan& plan) { static_cast<void>(plan); }
  // Before and after StepExecutor::Collect. Plans are collected in the order of their submission,
  // and at most ExecutorLimits::depth of them are in flight.
  virtual void BeforeCollect() {}
  virtual void AfterCollect(const StepPlan& plan, const StepResult& result) {
    static_cast<void>(plan), static_cast<void>(result);
  }
  // The request's first token is known.
  virtual void OnFirstToken(RequestId id) { static_cast<void>(id); }
  // A request ended, well or not. There is no call for a request that Submit refused.
  virtual void OnFinish(const Request& request, const Finish& finish) {
    static_cast<void>(request), static_cast<void>(finish);
  }
};

}  // namespace fox
