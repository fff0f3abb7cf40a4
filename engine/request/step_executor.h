// StepExecutor: the seam between deciding (Engine, Scheduler) and computing (ModelRunner). Tests
// put an executor of their own here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/request/executor_limits.h"
#include "engine/request/step_plan.h"

namespace fox {

struct StepResult {
  // [sequences]: for each planned sequence with logit rows and without `sample`, its rows one after
  // another, float32 [rows, vocab_size]; else null. Valid until the next Submit.
  std::vector<const float*> logits;
  // [sequences]: for each planned sequence with `sample` its token, else any token. Internal: a
  // logit is NaN or infinite, or no token is left; then the slot's next input is any valid token.
  // May be empty if the plan has no `sample`.
  std::vector<absl::StatusOr<SampledToken>> sampled;
  // [sequences]: for each planned sequence with `scores` their records, else null. May be empty if
  // the plan has no `scores`. Valid until the next Submit.
  std::vector<const SampleRecord*> scores;
  // As of the end of this plan, whichever plans were submitted after it.
  std::vector<AcpStats> stats;  // [sequences]: counters of the slot since its last release
  // [sequences]: bounds on the mass that the sequence's rows of the plan lost. Empty: none lost
  // any.
  std::vector<LostMass> lost_mass;
  int64_t free_pages = 0;  // a lower bound
  // [slots + snapshot_slots]: pages that only this slot holds, as of the end of this plan. Valid
  // until the next Submit. Null without snapshot slots, because no pages are shared then.
  const int32_t* sole_pages = nullptr;
  // [snapshots]: counters of the snapshot slots that the plan took. May be empty: then these
  // snapshots cannot be saved.
  std::vector<AcpStats> snapshots;
  // [slots, lists_per_slot]: the first page that each list keeps, as of the end of this plan. Valid
  // until the next Submit. Null if the plan did not ask.
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
  // masked() sequences; null: the token no longer matters. The masks are copied. Called once for
  // each plan with masked sequences, when all plans before it are collected, because a mask follows
  // from the token before.
  virtual absl::Status SetMasks(const std::vector<const uint32_t*>&) {
    return absl::UnimplementedError("the executor knows no masks");
  }
  // Waits for the oldest plan that is not collected. REQUIRES: there is one.
  virtual absl::StatusOr<StepResult> Collect() = 0;
  // Memory of ExecutorLimits::staging_bytes for the image of a slot, 0 <= buffer < staging_buffers,
  // where the slots are: of the device, if there is one. Plans that save or load use it until they
  // are collected.
  virtual std::byte* StagingBuffer(int32_t) { return nullptr; }
  // The executor's health, for times without plans. Does not wait.
  virtual absl::Status Probe() { return absl::OkStatus(); }

  absl::StatusOr<StepResult> Run(const StepPlan& plan) {
    if (absl::Status status = Submit(plan); !status.ok()) return status;
    return Collect();
  }
};

}  // namespace fox
