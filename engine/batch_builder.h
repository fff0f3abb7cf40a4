// BatchBuilder: a StepPlan as the arrays an operation reads, in one block of the backend's memory,
// so that a step sends one copy.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/step_plan.h"
#include "kernels/ops.h"

namespace fox {

class BatchBuilder {
 public:
  BatchBuilder(Ops& ops, int64_t max_rows, int64_t max_seqs, int64_t max_logit_rows);

  // Views are valid until the next Build. REQUIRES: the plan is within the limits given above.
  void Build(const StepPlan& plan, Stream stream);

  const BatchView& batch() const { return batch_; }
  const int64_t* logit_rows() const { return logit_rows_; }
  int64_t num_logit_rows() const { return num_logit_rows_; }
  // Counters of the step, zeroed by Build; [num_seqs] each, in the backend's memory.
  int64_t* blocks_total() const { return blocks_total_; }
  int64_t* blocks_skipped() const { return blocks_skipped_; }
  int64_t* pages_evicted() const { return pages_evicted_; }

 private:
  template <typename T>
  const T* Put(const std::vector<T>& values);

  Ops& ops_;
  Buffer device_;
  std::vector<std::byte> host_;
  BatchView batch_;
  const int64_t* logit_rows_ = nullptr;
  int64_t num_logit_rows_ = 0;
  int64_t* blocks_total_ = nullptr;
  int64_t* blocks_skipped_ = nullptr;
  int64_t* pages_evicted_ = nullptr;
};

}  // namespace fox
