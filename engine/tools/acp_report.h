// AcpReport: the paper's and the certified bound side by side, as text human-readable (table,
// histogram, boundaries over the decay matrix) and as JSON.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "engine/tools/acp_trace.h"

namespace fox {

struct AcpReport {
  AcpTrace paper, certified;  // of the same tokens
  double log_tolerance = -10;
  std::string model, dtype;

  int64_t tokens() const;
  // A head forgets when the paper's bound evicts at least one of its pages in these tokens.
  bool Forgets(size_t head) const { return paper.heads[head].EvictedAny(); }

  std::string Table() const;       // one line a head
  std::string Totals() const;      // kept pages, skipped blocks, certificates
  std::string Histogram() const;   // pruned share of the heads
  std::string Boundaries() const;  // most local, median, most gained, most global head
  nlohmann::ordered_json Json() const;
};

}  // namespace fox
