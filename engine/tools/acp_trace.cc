// Runs a sequence page by page and reads the cache's live ranges. See acp_trace.h.
#include "engine/tools/acp_trace.h"

#include "absl/strings/str_cat.h"
#include "engine/tools/teacher_forcing.h"

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

double FullWindow(int64_t pages) {
  HeadTrace full;
  full.first_live.assign(static_cast<size_t>(pages), 0);
  return full.MeanWindow();
}

absl::StatusOr<AcpTrace> TraceAcp(const EngineConfig& config, double log_tolerance,
                                  const std::vector<int32_t>& ids) {
  const auto loaded = LoadRunner(config);
  if (!loaded.ok()) return loaded.status();
  ModelRunner& runner = **loaded;
  const PagedKvShape& shape = runner.cache().view().shape;
  AcpTrace trace;
  trace.mode = config.runner.acp;
  for (int layer = 0; layer < shape.layers; ++layer) {
    for (int head = 0; head < shape.kv_heads; ++head) trace.heads.push_back({layer, head, {}});
  }
  for (int32_t id : ids) {
    if (id >= 0 && id < runner.limits().vocab_size) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("token id ", id, " is not in the vocabulary of ", runner.limits().vocab_size));
  }
  int64_t free_pages = runner.limits().num_pages;
  for (size_t begin = 0; begin + kPageTokens <= ids.size(); begin += kPageTokens) {
    const absl::Status room =
        CheckPages(runner.limits(), static_cast<int64_t>(begin), kPageTokens, free_pages);
    if (!room.ok()) return room;
    PlannedSequence seq;
    seq.position = static_cast<int64_t>(begin);
    seq.token_ids.assign(ids.begin() + static_cast<ptrdiff_t>(begin),
                         ids.begin() + static_cast<ptrdiff_t>(begin + kPageTokens));
    seq.log_tolerance = log_tolerance;
    StepPlan plan;
    plan.sequences = {std::move(seq)};
    const auto result = runner.Run(plan);
    if (!result.ok()) return result.status();
    free_pages = result->free_pages;
    trace.blocks_total = result->stats[0].blocks_total;
    trace.blocks_pruned = result->stats[0].blocks_pruned;
    const std::vector<int32_t> first = runner.cache().FirstLive(0);
    for (size_t i = 0; i < first.size(); ++i) trace.heads[i].first_live.push_back(first[i]);
  }
  trace.max_log_evicted_mass = runner.cache().MaxLogMass(0);
  return trace;
}

}  // namespace fox
