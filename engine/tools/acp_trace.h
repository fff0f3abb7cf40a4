// AcpTrace: what every head keeps of one sequence under one bound, page end by page end, and the
// quantities made from it. Measured through the engine's own cache: eviction is decided at page
// ends only, so steps of one page show every decision. Read acp_report.h next.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/engine_factory.h"

namespace fox {

// A head is one kv head of one layer: it owns a page list. Pages hold 64 tokens.
struct HeadTrace {
  int layer = 0;
  int head = 0;
  std::vector<int32_t> first_live;  // by page p: the first live page once page p's end was decided

  int64_t pages() const { return static_cast<int64_t>(first_live.size()); }
  // First page that the rows of page p see.
  int64_t FirstSeen(int64_t p) const { return p == 0 ? 0 : first_live[static_cast<size_t>(p - 1)]; }
  // Live pages, summed over all page ends.
  int64_t KeptPages() const;
  // Live pages at the last page end.
  int64_t KeptAtEnd() const { return pages() == 0 ? 0 : pages() - first_live.back(); }
  // Pages evicted over pages written, averaged over page ends.
  double PrunedShare() const;
  // Tokens that a row sees, its own included: mean over the rows of the second half of the pages.
  double MeanWindow() const;
  bool EvictedAny() const { return pages() > 0 && first_live.back() > 0; }
};

struct AcpTrace {
  AcpMode mode = AcpMode::kOff;
  std::vector<HeadTrace> heads;  // layer by layer
  int64_t blocks_total = 0;      // (row, query head, page) in the causal range
  int64_t blocks_pruned = 0;     // of them, not read in prefill
  double max_log_evicted_mass = 0;
};

// MeanWindow of a head of `pages` pages that keeps everything.
double FullWindow(int64_t pages);

// Runs `ids` (whole pages only; a rest is not run) under `config.runner.acp`.
absl::StatusOr<AcpTrace> TraceAcp(const EngineConfig& config, double log_tolerance,
                                  const std::vector<int32_t>& ids);

}  // namespace fox
