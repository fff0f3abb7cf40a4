// EngineStats: gauges and totals of an engine.
#pragma once

#include <cstdint>

#include "engine/acp_stats.h"

namespace fox {

struct EngineStats {
  // Every request runs, waits or is paused.
  int64_t running = 0;
  int64_t waiting = 0;  // preempted ones included
  int64_t paused = 0;   // until their readers have caught up
  int64_t queued_tokens = 0;
  int64_t free_pages = 0;
  int64_t num_pages = 0;
  int64_t unpruned_pages = 0;  // that what has pages would hold without eviction
  int64_t steps = 0;
  int64_t prompt_tokens = 0;  // totals since start
  int64_t generated_tokens = 0;
  int64_t preemptions = 0;
  int64_t pages_evicted = 0;
  int64_t blocks_total = 0, blocks_pruned = 0;  // see AcpStats
  // Ended requests. expired: past a deadline; aborted: FinishReason::kAbort and stalled readers;
  // rejected: never started for want of room, all samples of a prompt counted once.
  int64_t finished = 0, failed = 0, cancelled = 0, expired = 0, aborted = 0, rejected = 0;
  double max_log_evicted_mass = kNoMass;  // over all finished requests
};

}  // namespace fox
