// fox-bench prefill: time to the first token's logits, by prompt length and bound, against the
// floor of its counted multiplications at the measured peak of the matrix product.
#include "absl/strings/str_format.h"
#include "tests/bench/bench_session.h"

namespace fox {
namespace {

struct PrefillRun {
  Summary seconds, cpu_seconds;
  AcpStats stats;
};

absl::StatusOr<PrefillRun> Measure(const BenchSession& session, BenchModel& model, int64_t length) {
  PrefillRun run;
  std::vector<double> samples, cpu_samples;
  for (int64_t i = 0; i <= session.flags.repeat; ++i) {
    const double start = Now(), cpu_start = CpuNow();
    const auto stats = Prefill(session, model, 0, 0, length);
    if (!stats.ok()) return stats.status();
    if (i > 0) {  // the first run warms up
      samples.push_back(Now() - start);
      cpu_samples.push_back(CpuNow() - cpu_start);
    }
    run.stats = *stats;
  }
  run.seconds = Summarize(std::move(samples));
  run.cpu_seconds = Summarize(std::move(cpu_samples));
  return run;
}

void Report(BenchSession& session, const BenchModel& model, AcpMode mode, int64_t length,
            const PrefillRun& run) {
  const auto rows = static_cast<double>(length);
  const auto visited = static_cast<double>(run.stats.blocks_total - run.stats.blocks_pruned);
  const double linear = model.LinearFlopsPerRow() * rows + model.HeadFlopsPerRow();
  // q.k and the weighted sum of v; a visited block counts whole.
  const double attention = visited * 4.0 * kPageTokens * session.config.head_dim;
  const double floor = (linear + attention) / session.peaks.flops_per_second.median;
  const double median = run.seconds.median;
  const auto page = static_cast<double>(model.runner->cache().shape.page_bytes());
  const double live = static_cast<double>(run.stats.live_pages()) * page;
  session.report.Row(
      absl::StrFormat("%6d  %-9s %9.2f (%.2f .. %.2f) %9.0f %9.2f %7.2f %8.2f", length,
                      NameOf(mode), median * 1e3, run.seconds.min * 1e3, run.seconds.max * 1e3,
                      rows / median, floor * 1e3, median / floor, live / (1 << 20)),
      {{"bench", "prefill"},
       {"length", length},
       {"acp", NameOf(mode)},
       {"seconds", ToJson(run.seconds)},
       {"cpu_seconds", ToJson(run.cpu_seconds)},
       {"tokens_per_second", rows / median},
       {"linear_flops", linear},
       {"attention_flops", attention},
       {"floor_seconds", floor},
       {"over_floor", median / floor},
       {"live_bytes", live},
       {"peak_bytes", static_cast<double>(run.stats.peak_pages) * page},
       {"unpruned_bytes", static_cast<double>(run.stats.pages_allocated) * page}});
}

}  // namespace

absl::Status BenchPrefill(BenchSession& session) {
  session.report.Section(
      "Prefill: one prompt, chunks as served",
      "tokens  acp        median ms (min .. max)  tokens/s  floor ms  /floor  KV MiB");
  for (AcpMode mode : session.flags.modes) {
    auto model = session.Load(mode, 1, session.flags.lengths.back());
    if (!model.ok()) return model.status();
    for (int64_t length : session.flags.lengths) {
      const auto run = Measure(session, *model, length);
      if (!run.ok()) return run.status();
      Report(session, *model, mode, length, *run);
    }
  }
  return absl::OkStatus();
}

}  // namespace fox
