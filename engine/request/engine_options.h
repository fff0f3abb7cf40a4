// EngineOptions: the settings of an engine, constant after construction. Read request.h next.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/request/speculation.h"
#include "kernels/paging/acp.h"

namespace fox {

// Seconds between two reports of windows (Request::report_windows). One report serves all requests.
inline constexpr double kWindowsInterval = 0.1;

// Pages that must be free for a request to start, beside pages promised to others.
enum class KvAdmission : uint8_t {
  kExpected,   // the pages that its prompt is expected to keep, judging by other requests
  kWorstCase,  // the pages that its prompt takes without eviction
};

// Fields are named like the flags of fox-server.
struct EngineOptions {
  AcpMode acp = AcpMode::kCertified;  // the executor's
  double log_tolerance = -10.0;       // log eps, for requests that do not ask for less
  KvAdmission kv_admission = KvAdmission::kExpected;
  int64_t max_num_queued_reqs = 1024;  // waiting requests; beyond: ResourceExhausted
  int64_t max_num_queued_tokens = 1 << 20;
  double max_queue_seconds = 120;    // estimated wait; beyond: ResourceExhausted. 0: no bound
  int64_t max_paused_reqs = 256;     // requests paused for slow readers; beyond: one is Aborted
  double stall_timeout = 30;         // seconds paused without an acknowledgement: Aborted. 0: never
  bool priority_scheduling = false;  // false: first come, first served
  int32_t min_priority = 0;          // the most urgent priority that a request may have
  // Chunks of prompts are cut so that a step takes about this long; they have at least a page. 0:
  // no limit.
  double max_step_seconds = 0;
  // Share of the pool's pages that snapshots of prefixes may keep until a request needs them; 0: no
  // prefix cache. Only with an executor that takes snapshots.
  double prefix_cache_share = 0.3;
  int64_t prefix_cache_interval = 4096;  // tokens between two snapshots of a sequence
  // The fewest tokens of a prefix that is stored. A stored prefix is read if it is longer than the
  // longest one in the pool by at least as many tokens.
  int64_t min_stored_tokens = 512;
  std::vector<int32_t> eos_token_ids;
  Speculation speculation;
  int32_t max_logprobs = 20;  // largest accepted SamplingParams::logprobs
  int matching_threads = 1;   // threads that compute a step's grammar masks, with the caller's
};

}  // namespace fox
