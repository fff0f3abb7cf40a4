// StepObserver: a look inside a running engine. Observers cannot change what it does.
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

  // Around StepExecutor::Submit. After it a plan is done on the CPU, enqueued on a GPU.
  virtual void BeforeSubmit(const StepPlan& plan) { static_cast<void>(plan); }
  virtual void AfterSubmit(const StepPlan& plan) { static_cast<void>(plan); }
  // Around StepExecutor::Collect. Plans are collected in the order of their submission, and at most
  // ExecutorLimits::depth of them are in flight.
  virtual void BeforeCollect() {}
  virtual void AfterCollect(const StepPlan& plan, const StepResult& result) {
    static_cast<void>(plan), static_cast<void>(result);
  }
  // The first token of a request is known.
  virtual void OnFirstToken(RequestId id) { static_cast<void>(id); }
  // A request ended, well or not; one that was refused never came here.
  virtual void OnFinish(const Request& request, const Finish& finish) {
    static_cast<void>(request), static_cast<void>(finish);
  }
};

}  // namespace fox
