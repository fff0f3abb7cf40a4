// AcpTrace: runs a sequence page by page and reads the cache's live ranges.
#include "engine/eval/acp_trace.h"

#include "engine/eval/teacher_forcing.h"
#include "engine/eval/token_loss.h"

namespace fox {

int64_t HeadTrace::KeptPages() const {
  int64_t kept = 0;
  for (int64_t p = 0; p < pages(); ++p) kept += p + 1 - first_live[static_cast<size_t>(p)];
  return kept;
}

double HeadTrace::PrunedShare() const {
  double sum = 0;
  for (int64_t p = 0; p < pages(); ++p) {
    sum += static_cast<double>(first_live[static_cast<size_t>(p)]) / static_cast<double>(p + 1);
  }
  return pages() == 0 ? 0 : sum / static_cast<double>(pages());
}

double HeadTrace::MeanWindow() const {
  double sum = 0;
  const int64_t from = pages() / 2;
  for (int64_t p = from; p < pages(); ++p) {
    // Rows 64p .. 64p+63 see 1 .. 64 keys of their own page.
    sum += static_cast<double>((p - FirstSeen(p)) * kPageTokens) + (kPageTokens + 1) / 2.0;
  }
  return pages() == from ? 0 : sum / static_cast<double>(pages() - from);
}

double AcpTrace::PrunedPairs() const {
  if (stats.blocks_total == 0) return 0;
  return static_cast<double>(stats.blocks_pruned) / static_cast<double>(stats.blocks_total);
}

double AcpTrace::EvictedPages() const {
  if (stats.pages_allocated == 0) return 0;
  return static_cast<double>(stats.pages_evicted) / static_cast<double>(stats.pages_allocated);
}

absl::StatusOr<AcpTrace> TraceAcp(ModelRunner& runner, double log_tolerance,
                                  const std::vector<int32_t>& ids) {
  const PagedKvShape& shape = runner.cache().shape;
  AcpTrace trace;
  for (int layer = 0; layer < shape.layers; ++layer) {
    for (int head = 0; head < shape.kv_heads; ++head) trace.heads.push_back({layer, head, {}});
  }
  TeacherForcingOptions options;
  options.chunk = kPageTokens;
  options.log_tolerance = log_tolerance;
  options.after_step = [&](const StepResult& result) {
    trace.stats = result.stats[0];
    std::vector<int32_t> first(trace.heads.size());  // of slot 0
    runner.ops().CopyToHost(runner.cache().first_live, first.size() * sizeof(int32_t), first.data(),
                            nullptr);
    for (size_t i = 0; i < first.size(); ++i) trace.heads[i].first_live.push_back(first[i]);
  };
  const auto add_losses = [&](int64_t first, const MatrixView& logits) {
    AppendLosses(ids, first, logits, &trace.losses);
  };
  if (absl::Status s = RunTeacherForced(runner, ids, options, add_losses); !s.ok()) return s;
  return trace;
}

}  // namespace fox
