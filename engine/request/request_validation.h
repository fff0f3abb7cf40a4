// Request validation: every range of request.h, checked before anything is queued.
#pragma once

#include "absl/status/status.h"
#include "engine/request/engine_options.h"
#include "engine/request/executor_limits.h"
#include "engine/request/request.h"

namespace fox {

// Checks ranges and sizes against the model and the pool. InvalidArgument names the field;
// OutOfRange: longer than the context or than the whole pool could hold.
absl::Status ValidateRequest(const Request& request, const EngineOptions& options,
                             const ExecutorLimits& limits);
// Checks sampling parameters only.
absl::Status ValidateSampling(const SamplingParams& sampling, const EngineOptions& options,
                              int32_t vocab_size);

}  // namespace fox
