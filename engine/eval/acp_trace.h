// AcpTrace: the pages that every head keeps of one sequence under one bound, page end by page end,
// the quantities derived from them, and the loss of the tokens. Measured through the engine's own
// cache: eviction is decided at page ends only, so steps of one page show every decision. Read
// acp_report.h next.
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
  std::vector<int32_t> first_live;  // [pages]: the first live page after the end of page p

  int64_t pages() const { return static_cast<int64_t>(first_live.size()); }
  // First page that the rows of page p see.
  int64_t FirstSeen(int64_t p) const { return p == 0 ? 0 : first_live[static_cast<size_t>(p - 1)]; }
  // Live pages, summed over all page ends.
  int64_t KeptPages() const;
  // Pages evicted over pages written, averaged over page ends.
  double PrunedShare() const;
  // Tokens that a row sees, its own included: mean over the rows of the second half of the pages.
  double MeanWindow() const;
  bool EvictedAny() const { return pages() > 0 && first_live.back() > 0; }
};

struct AcpTrace {
  std::vector<HeadTrace> heads;  // layer by layer
  AcpStats stats;                // as of the last page end
  std::vector<double> losses;    // -log p of tokens 1, 2, ..., in nats

  // (row, query head, page) in the causal range that prefill did not read, over all of them.
  double PrunedPairs() const;
  // Pages evicted over pages written, as of the last page end.
  double EvictedPages() const;
};

// Runs `ids`, whole pages, in slot 0 under the runner's bound and the given log eps.
absl::StatusOr<AcpTrace> TraceAcp(ModelRunner& runner, double log_tolerance,
                                  const std::vector<int32_t>& ids);

}  // namespace fox
