// FastCopies: an executor for which copies to and from swap space cost almost nothing, so that what
// is preempted is swapped out wherever there is room.
#pragma once

#include <vector>

#include "engine/request/step_executor.h"

namespace fox {

class FastCopies final : public StepExecutor {
 public:
  // `inner` must outlive it.
  explicit FastCopies(StepExecutor& inner) : inner_(inner), limits_(inner.limits()) {
    limits_.swap_rate = 1e15;
  }
  const ExecutorLimits& limits() const override { return limits_; }
  absl::Status Submit(const StepPlan& plan) override { return inner_.Submit(plan); }
  absl::Status SetMasks(const std::vector<const uint32_t*>& masks) override {
    return inner_.SetMasks(masks);
  }
  absl::StatusOr<StepResult> Collect() override { return inner_.Collect(); }
  absl::Status Probe() override { return inner_.Probe(); }

 private:
  StepExecutor& inner_;
  ExecutorLimits limits_;
};

}  // namespace fox
