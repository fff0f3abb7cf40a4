// StepPlan: what one engine step will run, as plain printable data. Made by Scheduler, executed by
// a StepExecutor.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/request.h"

namespace fox {

struct PlannedSequence {
  RequestId id = 0;
  int32_t slot = 0;
  int64_t position = 0;            // absolute position of the first token
  std::vector<int32_t> token_ids;  // to append, one or more
  // Rows of logits wanted, counted within token_ids, ascending: the last one to sample from, more
  // for prompt log-probabilities.
  std::vector<int32_t> logit_rows;
  double log_tolerance = 0;  // log eps; -infinity: prune nothing
};

struct StepPlan {
  std::vector<int32_t> release_slots;  // emptied before anything else runs
  std::vector<PlannedSequence> sequences;

  bool empty() const { return release_slots.empty() && sequences.empty(); }
  int64_t num_tokens() const;
  std::string DebugString() const;
};

}  // namespace fox
