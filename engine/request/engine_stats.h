// EngineStats: an engine's gauges, and its totals since start.
#pragma once

#include <cstdint>

#include "engine/request/acp_stats.h"

namespace fox {

struct EngineStats {
  // Every request runs, waits or is paused.
  int64_t running = 0;
  int64_t waiting = 0;  // including preempted requests and requests that yielded their slot
  int64_t paused = 0;   // until their readers have caught up
  int64_t queued_tokens = 0;
  int64_t free_pages = 0;
  int64_t num_pages = 0;
  // Pages that sequences hold, and would hold without eviction. Shared pages count for each holder.
  int64_t kept_pages = 0, unpruned_pages = 0;
  int64_t steps = 0;
  int64_t prompt_tokens = 0;
  int64_t generated_tokens = 0;
  int64_t drafted_tokens = 0, accepted_drafts = 0;  // Speculation
  int64_t preemptions = 0;
  int64_t pages_evicted = 0;
  int64_t blocks_total = 0, blocks_pruned = 0;  // see AcpStats
  // The prefix cache: snapshots now, their pages (including those shared with sequences), and
  // totals of tokens looked up, tokens found, and snapshots dropped.
  int64_t snapshots = 0, snapshot_pages = 0;
  int64_t prefix_queried_tokens = 0, prefix_found_tokens = 0, snapshots_dropped = 0;
  // Of a prefix cache with a store: snapshots that Engine::SavePrefixCache has still to write,
  // snapshots dropped without being saved, for lack of a buffer, and snapshots from the store.
  int64_t snapshots_unsaved = 0, snapshots_lost = 0, snapshots_landed = 0;
  // Ended requests. expired: past a deadline; aborted: FinishReason::kAbort and stalled readers;
  // rejected: never started for lack of room, with all samples of a prompt counted once.
  int64_t finished = 0, failed = 0, cancelled = 0, expired = 0, aborted = 0, rejected = 0;
  double max_log_evicted_mass = kNoMass;  // over all finished requests
};

}  // namespace fox
