// EngineOptions: what an engine is told once, when it is made. Read request.h next.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/op_params.h"

namespace fox {

// Names are those of fox-server's flags.
struct EngineOptions {
  AcpMode acp = AcpMode::kCertified;  // the executor's
  double log_tolerance = -10.0;       // log eps, for requests that do not ask for less
  int64_t max_num_queued_reqs = 256;  // waiting; beyond: ResourceExhausted
  int64_t max_num_queued_tokens = 1 << 20;
  bool priority_scheduling = true;  // false: first come, first served
  std::vector<int32_t> eos_token_ids;
  int32_t max_logprobs = 20;  // largest accepted SamplingParams::logprobs
};

}  // namespace fox
