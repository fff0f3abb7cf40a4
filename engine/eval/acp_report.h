// AcpReport: the paper's and the certified bound side by side: totals, loss, the sweep over log eps
// and each head's pages as JSON; a table of heads as text.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "engine/eval/acp_loss.h"
#include "engine/eval/acp_trace.h"

namespace fox {

// Both bounds at one log eps, over the tokens of the report's traces.
struct SweepPoint {
  double log_tolerance = 0;
  AcpTrace paper, certified;
};

struct AcpReport {
  AcpTrace off, paper, certified;  // of the same tokens
  double log_tolerance = -10;
  AcpLoss loss;  // of these tokens, and perhaps of further windows
  std::vector<SweepPoint> sweep;
  std::string model, dtype, quantization;

  int64_t tokens() const;
  // A head forgets when the paper's bound evicts at least one of its pages in these tokens.
  bool Forgets(size_t head) const { return paper.heads[head].EvictedAny(); }

  std::string Table() const;  // one line a head
  // Windows, kept pages, skipped blocks, and the certificate of each mode: the largest bound over
  // all evictions (acp.md). Blocks that prefill rows skip obey the same tolerance row by row and
  // are not part of it.
  nlohmann::ordered_json Json() const;
};

}  // namespace fox
