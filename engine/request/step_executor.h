// StepExecutor: the seam between deciding (Engine, Scheduler) and computing (ModelRunner). Tests
// put an executor of their own here.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/request/executor_limits.h"
#include "engine/request/step_plan.h"

namespace fox {

struct StepResult {
  // For each planned sequence with logit rows and without `sample`, in plan order, its rows one
  // after another: float32 [rows, vocab_size]. Valid until the next Submit.
  std::vector<const float*> logits;  // [sequences]; null where none were asked for
  // For each planned sequence with `sample` its token; Internal: a logit is NaN or infinite, or no
  // token is left. Then the slot's next input is any valid token.
  std::vector<absl::StatusOr<SampledToken>> sampled;  // [sequences]; the others hold any token. May
                                                      // be empty where the plan has no `sample`
  // As of the end of this plan, whatever plans were submitted behind it.
  std::vector<AcpStats> stats;  // [sequences] of the slot since its last release
  int64_t free_pages = 0;       // at least that many are free
  // [slots + snapshot_slots]: pages that the slot alone has, as of the end of this plan; valid
  // until the next Submit. Null where there are no snapshot slots: no pages are shared.
  const int32_t* sole_pages = nullptr;
  // [slots, lists_per_slot]: the first page that each list keeps, as of the end of this plan; null
  // where the plan did not ask. Valid until the next Submit.
  const int32_t* first_pages = nullptr;
};

// One thread calls. A failed Submit or Collect (Internal, Unavailable) poisons the executor: every
// later call fails.
class StepExecutor {
 public:
  virtual ~StepExecutor() = default;
  virtual const ExecutorLimits& limits() const = 0;
  // Takes a plan; plans run in the order of submission. REQUIRES: fewer than limits().depth plans
  // are submitted and not collected.
  virtual absl::Status Submit(const StepPlan& plan) = 0;
  // The masks of the plan submitted last, [MaskWords(vocab_size)] each, in the order of its
  // masked() sequences; null: its token matters no more. Copied. Called once for each such plan,
  // when all plans before are collected: a mask follows from the token before.
  virtual absl::Status SetMasks(const std::vector<const uint32_t*>&) {
    return absl::UnimplementedError("the executor knows no masks");
  }
  // Waits for the oldest plan that is not collected. REQUIRES: there is one.
  virtual absl::StatusOr<StepResult> Collect() = 0;
  // Whether it has failed since the last call, for when there is nothing to run. Does not wait.
  virtual absl::Status Probe() { return absl::OkStatus(); }

  absl::StatusOr<StepResult> Run(const StepPlan& plan) {
    if (absl::Status status = Submit(plan); !status.ok()) return status;
    return Collect();
  }
};

}  // namespace fox
