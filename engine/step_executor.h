// StepExecutor: the seam between deciding (Engine, Scheduler) and computing (ModelRunner). Tests
// put an executor of their own here.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/step_plan.h"

namespace fox {

// Counters of one slot since it was last released.
struct SlotStats {
  int64_t blocks_total = 0;
  int64_t blocks_skipped = 0;
  int64_t pages_allocated = 0;
  int64_t pages_evicted = 0;
  int64_t live_pages = 0;  // now
  int64_t peak_pages = 0;
  double max_log_evicted_mass = 0;  // -infinity: nothing was evicted
};

struct StepResult {
  // For each planned sequence with logit rows, in plan order, its rows one after another:
  // float32 [rows, vocab_size]. Valid until the next Run.
  std::vector<const float*> logits;  // [sequences]; null where none were asked for
  std::vector<SlotStats> stats;      // [sequences]
  int64_t free_pages = 0;            // at least that many are free now
};

struct ExecutorLimits {
  int64_t num_pages = 0;  // in the pool
  int64_t lists_per_slot =
      0;  // layers x kv heads: every 64 tokens a sequence takes that many pages
  int32_t max_slots = 0;
  int64_t max_model_len = 0;     // tokens of one sequence
  int64_t max_batch_tokens = 0;  // of one step
  int64_t max_logit_rows = 0;    // of one step
  int32_t vocab_size = 0;
};

// One thread calls. A failed Run (Internal, Unavailable) poisons the executor: every later Run
// fails.
class StepExecutor {
 public:
  virtual ~StepExecutor() = default;
  virtual const ExecutorLimits& limits() const = 0;
  virtual absl::StatusOr<StepResult> Run(const StepPlan& plan) = 0;
};

}  // namespace fox
