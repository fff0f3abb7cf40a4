// fox-bench prefill: time to the first token's logits, by prompt length and bound, against the
// floor of its counted multiplications at the measured peak of the matrix product.
#include <map>

#include "absl/strings/str_format.h"
#include "tests/bench/bench_session.h"

namespace fox {
namespace {

struct PrefillRun {
  Summary seconds;
  OpSeconds ops;     // of all measured runs; of one more run where timing would disturb
  double total = 0;  // seconds of those runs
  AcpStats stats;
};

absl::StatusOr<PrefillRun> Measure(const BenchSession& session, BenchModel& model, int64_t length) {
  PrefillRun run;
  std::vector<double> samples;
  for (int64_t i = 0; i <= session.flags.repeat; ++i) {
    if (i == 1) model.ops->Take();  // the first run warms up
    const double start = Now();
    const auto stats = Prefill(session, model, 0, 0, length);
    if (!stats.ok()) return stats.status();
    if (i == 0) continue;
    samples.push_back(Now() - start);
    run.total += samples.back();
    run.stats = *stats;
  }
  if (session.on_gpu) {
    model.ops->set_timing(true);
    const double start = Now();
    const auto stats = Prefill(session, model, 0, 0, length);
    if (!stats.ok()) return stats.status();
    run.total = Now() - start;
    model.ops->set_timing(false);
  }
  run.ops = model.ops->Take();
  run.seconds = Summarize(std::move(samples));
  return run;
}

void Report(BenchSession& session, const BenchModel& model, AcpMode mode, int64_t length,
            const PrefillRun& run, std::map<int64_t, double>& off) {
  const auto rows = static_cast<double>(length);
  const auto visited = static_cast<double>(run.stats.blocks_total - run.stats.blocks_pruned);
  const double linear = model.LinearFlopsPerRow() * rows + model.HeadFlopsPerRow();
  // q.k and the weighted sum of v; a visited block counts whole.
  const double attention = visited * 4.0 * kPageTokens * session.config.head_dim;
  const double floor = (linear + attention) / session.peaks.flops_per_second.median;
  const double median = run.seconds.median;
  if (mode == AcpMode::kOff) off[length] = median;
  const double gain = off.count(length) > 0 ? off[length] / median : 0;
  const auto page = static_cast<double>(model.runner->cache().view().shape.page_bytes());
  const double linear_share = run.ops[OpKind::kLinear] / run.total;
  const double product_share = linear_share + run.ops[OpKind::kAttention] / run.total;
  session.report.Row(
      absl::StrFormat("%6d  %-9s %9.2f (%.2f .. %.2f) %9.0f %9.2f %7.2f %8.1f%% %8.1f%% %7.2fx\n%s",
                      length, NameOf(mode), median * 1e3, run.seconds.min * 1e3,
                      run.seconds.max * 1e3, rows / median, floor * 1e3, median / floor,
                      100 * linear_share, 100 * product_share, gain,
                      SharesLine(run.ops, run.total)),
      {{"bench", "prefill"},
       {"length", length},
       {"acp", NameOf(mode)},
       {"seconds", ToJson(run.seconds)},
       {"tokens_per_second", rows / median},
       {"linear_flops", linear},
       {"attention_flops", attention},
       {"floor_seconds", floor},
       {"over_floor", median / floor},
       {"linear_share", linear_share},
       {"linear_and_attention_share", product_share},
       {"speedup_over_off", gain},
       {"blocks_total", run.stats.blocks_total},
       {"blocks_pruned", run.stats.blocks_pruned},
       {"live_bytes", static_cast<double>(run.stats.live_pages()) * page},
       {"peak_bytes", static_cast<double>(run.stats.peak_pages) * page},
       {"unpruned_bytes", static_cast<double>(run.stats.pages_allocated) * page},
       {"shares", SharesJson(run.ops, run.total)}});
}

}  // namespace

absl::Status BenchPrefill(BenchSession& session) {
  session.report.Section(
      "Prefill: one prompt, chunks as served",
      "tokens  acp        median ms (min .. max)  tokens/s  floor ms  /floor   linear  +attention "
      " vs off");
  std::map<int64_t, double> off;
  for (AcpMode mode : session.flags.modes) {
    auto model = session.Load(mode, 1, session.flags.lengths.back());
    if (!model.ok()) return model.status();
    for (int64_t length : session.flags.lengths) {
      const auto run = Measure(session, *model, length);
      if (!run.ok()) return run.status();
      Report(session, *model, mode, length, *run, off);
    }
  }
  return absl::OkStatus();
}

}  // namespace fox
