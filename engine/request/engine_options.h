// EngineOptions: what an engine is told once, when it is made. Read request.h next.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/request/speculation.h"
#include "kernels/paging/acp.h"

namespace fox {

// Seconds between two reports of windows (Request::report_windows), of all requests together.
inline constexpr double kWindowsInterval = 0.1;

// What must be free for a request to start, beside what others were promised.
enum class KvAdmission : uint8_t {
  kExpected,   // the pages that its prompt is expected to keep, by what others kept
  kWorstCase,  // all that its prompt takes if nothing is evicted
};

// Names are those of fox-server's flags.
struct EngineOptions {
  AcpMode acp = AcpMode::kCertified;  // the executor's
  double log_tolerance = -10.0;       // log eps, for requests that do not ask for less
  KvAdmission kv_admission = KvAdmission::kExpected;
  int64_t max_num_queued_reqs = 256;  // waiting; beyond: ResourceExhausted
  int64_t max_num_queued_tokens = 1 << 20;
  double max_queue_seconds = 120;    // of estimated wait; beyond: ResourceExhausted. 0: no bound
  int64_t max_paused_reqs = 256;     // whose readers are slow; beyond: one is Aborted
  double stall_timeout = 30;         // paused so long without an acknowledgement: Aborted. 0: never
  bool priority_scheduling = false;  // false: first come, first served
  int32_t min_priority = 0;          // the most urgent that a request may ask for
  // Prompts are cut to what a step does in about that time, at least a page. 0: no limit.
  double max_step_seconds = 0;
  // Snapshots of prefixes may keep that share of the pool's pages, unless a request needs them; 0:
  // there are none. Where the executor takes any.
  double prefix_cache_share = 0.3;
  int64_t prefix_cache_interval = 4096;  // tokens between two snapshots of a sequence
  std::vector<int32_t> eos_token_ids;
  Speculation speculation;
  int32_t max_logprobs = 20;  // largest accepted SamplingParams::logprobs
  int matching_threads = 1;   // that share the masks of a step's grammars, the caller's among them
};

}  // namespace fox
