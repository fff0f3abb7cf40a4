// fox-bench decode: time of one step, by batch size, context and bound, against the floor of its
// counted bytes (linear weights once, and the KV pages that attention visited) at the measured read
// bandwidth. A step that reads less than the last-level cache holds can beat memory, so each row is
// also compared with reading a buffer as large as its own bytes, right after it.
#include <map>
#include <numeric>
#include <tuple>

#include "absl/strings/str_format.h"
#include "tests/bench/bench_session.h"

namespace fox {
namespace {

constexpr int64_t kWarmUpSteps = 3;

int64_t StepsOf(const BenchFlags& flags) { return 4 * flags.repeat; }

struct DecodeRun {
  Summary seconds;
  OpSeconds ops;
  double total = 0;
  double context = 0;         // mean tokens before the step
  double visited_blocks = 0;  // a step
  double live_pages = 0;      // a step
};

// Slots in lockstep; decoding moves positions on.
class DecodeBatch {
 public:
  DecodeBatch(const BenchSession& session, BenchModel& model, size_t slots)
      : session_(session), model_(model), position_(slots, 0), stats_(slots) {}

  absl::Status ExtendTo(int64_t context) {
    for (size_t slot = 0; slot < position_.size(); ++slot) {
      if (position_[slot] >= context) continue;
      const auto stats = Prefill(session_, model_, static_cast<int32_t>(slot), position_[slot],
                                 context - position_[slot]);
      if (!stats.ok()) return stats.status();
      stats_[slot] = *stats;
      position_[slot] = context;
    }
    return absl::OkStatus();
  }

  // Returns the step's seconds.
  absl::StatusOr<double> Step(size_t batch) {
    StepPlan plan;
    for (size_t slot = 0; slot < batch; ++slot) {
      PlannedSequence seq;
      seq.slot = static_cast<int32_t>(slot);
      seq.position = position_[slot]++;
      seq.token_ids = session_.TokensAt(seq.position + seq.slot * 997, 1);
      seq.logit_rows = {0};
      seq.log_tolerance = model_.log_tolerance;
      plan.sequences.push_back(std::move(seq));
    }
    const double start = Now();
    const auto result = model_.runner->Run(plan);
    const double seconds = Now() - start;
    if (!result.ok()) return result.status();
    for (size_t slot = 0; slot < batch; ++slot) {
      const SlotStats& now = result->stats[slot];
      visited_ += now.blocks_total - now.blocks_skipped -
                  (stats_[slot].blocks_total - stats_[slot].blocks_skipped);
      live_ += now.live_pages;
      stats_[slot] = now;
    }
    return seconds;
  }

  absl::StatusOr<DecodeRun> Measure(size_t batch) {
    for (int64_t i = 0; i < kWarmUpSteps; ++i) {
      if (const auto step = Step(batch); !step.ok()) return step.status();
    }
    model_.ops->Take();
    visited_ = live_ = 0;
    DecodeRun run;
    run.context =
        static_cast<double>(std::accumulate(
            position_.begin(), position_.begin() + static_cast<ptrdiff_t>(batch), int64_t{0})) /
        static_cast<double>(batch);
    std::vector<double> samples;
    for (int64_t i = 0; i < StepsOf(session_.flags); ++i) {
      const auto step = Step(batch);
      if (!step.ok()) return step.status();
      samples.push_back(*step);
      run.total += *step;
    }
    const auto steps = static_cast<double>(samples.size());
    run.ops = model_.ops->Take();
    run.visited_blocks = static_cast<double>(visited_) / steps;
    run.live_pages = static_cast<double>(live_) / steps;
    run.seconds = Summarize(std::move(samples));
    return run;
  }

 private:
  const BenchSession& session_;
  BenchModel& model_;
  std::vector<int64_t> position_;
  std::vector<SlotStats> stats_;
  int64_t visited_ = 0, live_ = 0;
};

using Key = std::tuple<int64_t, int64_t>;  // context, batch size

void Report(BenchSession& session, const BenchModel& model, AcpMode mode, const Key& key,
            const DecodeRun& run, std::map<Key, double>& off) {
  const auto [context, batch] = key;
  const auto weights = static_cast<double>(model.runner->weights().linear_bytes());
  const double pages = run.visited_blocks * model.BlockBytes();
  const double flops =
      (model.LinearFlopsPerRow() + model.HeadFlopsPerRow()) * static_cast<double>(batch) +
      run.visited_blocks * 4.0 * kPageTokens * session.config.head_dim;
  const double bandwidth = session.peaks.read_bytes_per_second.median;
  const double floor =
      std::max((weights + pages) / bandwidth, flops / session.peaks.flops_per_second.median);
  const double median = run.seconds.median;
  const double fraction = (weights + pages) / median / bandwidth;
  if (mode == AcpMode::kOff) off[key] = median;
  const double gain = off.count(key) > 0 ? off[key] / median : 0;
  const Summary resident = MeasureReadBandwidth(static_cast<int64_t>(weights + pages), 9);
  const double resident_fraction = (weights + pages) / median / resident.median;
  session.report.Row(
      absl::StrFormat("%7d %5d  %-9s %8.3f (%.3f .. %.3f) %8.0f %8.1f %8.1f %8.3f %7.2f %8.1f%% "
                      "%8.1f%% %6.2fx\n%s",
                      context, batch, NameOf(mode), median * 1e3, run.seconds.min * 1e3,
                      run.seconds.max * 1e3, static_cast<double>(batch) / median, weights / 1e6,
                      pages / 1e6, floor * 1e3, median / floor, 100 * fraction,
                      100 * resident_fraction, gain, SharesLine(run.ops, run.total)),
      {{"bench", "decode"},
       {"context", context},
       {"mean_position", run.context},
       {"batch_size", batch},
       {"acp", NameOf(mode)},
       {"seconds", ToJson(run.seconds)},
       {"tokens_per_second", static_cast<double>(batch) / median},
       {"weight_bytes", weights},
       {"page_bytes_read", pages},
       {"live_pages", run.live_pages},
       {"flops", flops},
       {"floor_seconds", floor},
       {"over_floor", median / floor},
       {"fraction_of_read_bandwidth", fraction},
       {"resident_read_bytes_per_second", ToJson(resident)},
       {"fraction_of_resident_bandwidth", resident_fraction},
       {"speedup_over_off", gain},
       {"shares", SharesJson(run.ops, run.total)}});
}

}  // namespace

absl::Status BenchDecode(BenchSession& session) {
  const BenchFlags& flags = session.flags;
  if (session.on_gpu) return BenchGpuDecode(session);
  session.report.Section(
      "Decode: one token for each sequence",
      "context batch  acp       median ms (min .. max)  tokens/s  weights MB  pages MB  floor ms  "
      "/floor  of memory  of own size  vs off");
  // Every measurement moves the sequences on by a few tokens.
  const auto drift = (StepsOf(flags) + kWarmUpSteps) *
                     static_cast<int64_t>(flags.batch_sizes.size() * flags.contexts.size());
  std::map<Key, double> off;
  for (AcpMode mode : flags.modes) {
    const int64_t slots = flags.batch_sizes.back();
    auto model = session.Load(mode, slots, flags.contexts.back() + drift);
    if (!model.ok()) return model.status();
    DecodeBatch sequences(session, *model, static_cast<size_t>(slots));
    for (int64_t context : flags.contexts) {
      if (absl::Status s = sequences.ExtendTo(context); !s.ok()) return s;
      for (int64_t batch : flags.batch_sizes) {
        const auto run = sequences.Measure(static_cast<size_t>(batch));
        if (!run.ok()) return run.status();
        Report(session, *model, mode, {context, batch}, *run, off);
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace fox
