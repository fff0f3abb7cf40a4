// TeacherForcing: runs given tokens through the engine's own path (paged cache, chunked prefill,
// eviction, then decode one by one) and hands out every row of logits. fox-eval measures with it.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "engine/run/model_runner.h"

namespace fox {

struct TeacherForcingOptions {
  int64_t chunk = 512;       // prefill tokens a step
  int64_t decode_from = -1;  // positions from here on go one by one; -1: none
  double log_tolerance = -10;
  std::function<void(const StepResult&)> after_step;  // may be null
};

// Receives the logits [rows, V] of a step, for positions first .. first + rows - 1.
using LogitsSink = std::function<void(int64_t first, const MatrixView& logits)>;

// ResourceExhausted if `count` tokens from `position` on need more than `free_pages` pages.
absl::Status CheckPages(const ExecutorLimits& limits, int64_t position, int64_t count,
                        int64_t free_pages);

// Uses slot 0, which it empties first. The sink may be null. Errors: OutOfRange, too many `ids`;
// InvalidArgument, an id unknown to the model; ResourceExhausted, see CheckPages.
absl::Status RunTeacherForced(ModelRunner& runner, const std::vector<int32_t>& ids,
                              const TeacherForcingOptions& options, const LogitsSink& sink);

}  // namespace fox
