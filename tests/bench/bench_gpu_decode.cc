// fox-bench decode on a GPU: the steady state of decoding as the engine runs it: two steps in
// flight, tokens drawn on the device, decode steps as captured graphs. The floor is that of its
// counted bytes at the measured read bandwidth. For one sequence the share of time in which the
// device had nothing to do is measured, too: the same graph replayed back to back against the
// steady state.
#include <algorithm>
#include <map>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tests/bench/bench_session.h"

namespace fox {
namespace {

constexpr int64_t kWarmUpSteps = 8;
constexpr int64_t kStepsPerSample = 8;
constexpr int kReplays = 200;

int64_t StepsOf(const BenchFlags& flags) {
  return kWarmUpSteps + 4 * flags.repeat * kStepsPerSample;
}

struct DecodeRun {
  Summary seconds;            // of one step
  double visited_blocks = 0;  // a step
  double live_pages = 0;      // a step
  OpSeconds ops;              // of one step, measured apart without graphs
  double total = 0;           // seconds of that step
};

// Slots in lockstep; decoding moves positions on.
class Pipeline {
 public:
  Pipeline(const BenchSession& session, BenchModel& model, size_t slots)
      : session_(session), model_(model), position_(slots, 0), stats_(slots) {}

  absl::Status ExtendTo(int64_t context, size_t slots) {
    for (size_t slot = 0; slot < slots; ++slot) {
      if (position_[slot] >= context) continue;
      const auto stats = Prefill(session_, model_, static_cast<int32_t>(slot), position_[slot],
                                 context - position_[slot]);
      if (!stats.ok()) return stats.status();
      stats_[slot] = *stats;
      position_[slot] = context;
    }
    return absl::OkStatus();
  }

  // The next prefill of a slot begins it anew.
  void Forget() { std::fill(position_.begin(), position_.end(), 0); }

  // Seconds of each group of kStepsPerSample steps, by step, after the warm-up.
  absl::StatusOr<std::vector<double>> Run(size_t batch, int64_t samples) {
    visited_ = live_ = 0;
    std::vector<double> seconds;
    const int64_t steps = kWarmUpSteps + samples * kStepsPerSample;
    const int depth = model_.runner->limits().depth;
    int64_t submitted = 0;
    double start = 0;
    for (int64_t step = 0; step < steps; ++step) {
      for (; submitted < std::min(steps, step + depth); ++submitted) {
        if (absl::Status status = model_.runner->Submit(Plan(batch)); !status.ok()) return status;
      }
      if (absl::Status status = Collect(batch, step >= kWarmUpSteps); !status.ok()) return status;
      const int64_t measured = step + 1 - kWarmUpSteps;
      if (measured == 0) start = Now();
      if (measured <= 0 || measured % kStepsPerSample != 0) continue;
      const double now = Now();
      seconds.push_back((now - start) / kStepsPerSample);
      start = now;
    }
    return seconds;
  }

  absl::StatusOr<DecodeRun> Measure(size_t batch) {
    const int64_t samples = 4 * session_.flags.repeat;
    auto seconds = Run(batch, samples);
    if (!seconds.ok()) return seconds.status();
    DecodeRun run;
    run.seconds = Summarize(*std::move(seconds));
    const auto steps = static_cast<double>(samples * kStepsPerSample);
    run.visited_blocks = static_cast<double>(visited_) / steps;
    run.live_pages = static_cast<double>(live_) / steps;
    if (!session_.flags.model.enforce_eager) return run;
    model_.ops->Take();
    model_.ops->set_timing(true);
    const double start = Now();
    const auto result = model_.runner->Run(Plan(batch));
    run.total = Now() - start;
    model_.ops->set_timing(false);
    run.ops = model_.ops->Take();
    if (!result.ok()) return result.status();
    return run;
  }

 private:
  StepPlan Plan(size_t batch) {
    StepPlan plan;
    for (size_t slot = 0; slot < batch; ++slot) {
      PlannedSequence seq;
      seq.slot = static_cast<int32_t>(slot);
      seq.position = position_[slot]++;
      seq.token_ids = {kDrawnToken};
      seq.logit_rows = {0};
      seq.draw = DrawPlan{.seed = slot, .position = static_cast<uint64_t>(seq.position) + 1};
      seq.log_tolerance = model_.log_tolerance;
      plan.sequences.push_back(std::move(seq));
    }
    return plan;
  }

  absl::Status Collect(size_t batch, bool count) {
    const auto result = model_.runner->Collect();
    if (!result.ok()) return result.status();
    for (size_t slot = 0; slot < batch; ++slot) {
      if (!result->drawn[slot].ok()) return result->drawn[slot].status();
      const SlotStats& now = result->stats[slot];
      if (count) {
        visited_ += now.blocks_total - now.blocks_skipped -
                    (stats_[slot].blocks_total - stats_[slot].blocks_skipped);
        live_ += now.live_pages;
      }
      stats_[slot] = now;
    }
    return absl::OkStatus();
  }

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
  const bool eager = session.flags.model.enforce_eager;
  const auto weights = static_cast<double>(model.runner->weights().linear_bytes());
  const double pages = run.visited_blocks * model.BlockBytes();
  const double floor = (weights + pages) / session.peaks.read_bytes_per_second.median;
  const double median = run.seconds.median;
  if (mode == AcpMode::kOff) off[key] = median;
  const double gain = off.count(key) > 0 ? off[key] / median : 0;
  std::string line = absl::StrFormat(
      "%7d %5d  %-9s %8.3f (%.3f .. %.3f) %9.0f %8.1f %8.1f %8.3f %7.2f %8.1f%% %6.2fx", context,
      batch, NameOf(mode), median * 1e3, run.seconds.min * 1e3, run.seconds.max * 1e3,
      static_cast<double>(batch) / median, weights / 1e6, pages / 1e6, floor * 1e3, median / floor,
      100 * floor / median, gain);
  nlohmann::ordered_json row = {{"bench", "decode"},
                                {"context", context},
                                {"batch_size", batch},
                                {"acp", NameOf(mode)},
                                {"graphs", !eager},
                                {"seconds", ToJson(run.seconds)},
                                {"tokens_per_second", static_cast<double>(batch) / median},
                                {"weight_bytes", weights},
                                {"page_bytes_read", pages},
                                {"live_pages", run.live_pages},
                                {"floor_seconds", floor},
                                {"over_floor", median / floor},
                                {"fraction_of_read_bandwidth", floor / median},
                                {"speedup_over_off", gain}};
  if (eager) {
    absl::StrAppend(&line, "\n", SharesLine(run.ops, run.total));
    row["shares"] = SharesJson(run.ops, run.total);
  }
  session.report.Row(line, std::move(row));
}

// One sequence again: how much of a step's time the device idles. Leaves the cache in disorder.
absl::Status MeasureIdle(BenchSession& session, BenchModel& model, Pipeline& sequences,
                         AcpMode mode, int64_t context) {
  sequences.Forget();
  if (absl::Status s = sequences.ExtendTo(context, 1); !s.ok()) return s;
  auto seconds = sequences.Run(1, 4 * session.flags.repeat);
  if (!seconds.ok()) return seconds.status();
  const Summary step = Summarize(*std::move(seconds));
  if (absl::Status s = model.runner->ReplayLastGraph(kReplays); !s.ok()) return s;
  const double start = Now();
  if (absl::Status s = model.runner->ReplayLastGraph(kReplays); !s.ok()) return s;
  const double busy = (Now() - start) / kReplays;
  const double idle = std::max(0.0, 1 - busy / step.median);
  session.report.Row(
      absl::StrFormat("%7d     1  %-9s idle %.2f%%: a step %.3f ms, its graph back "
                      "to back %.3f ms",
                      context, NameOf(mode), 100 * idle, step.median * 1e3, busy * 1e3),
      {{"bench", "idle"},
       {"context", context},
       {"batch_size", 1},
       {"acp", NameOf(mode)},
       {"seconds", ToJson(step)},
       {"graph_seconds", busy},
       {"idle", idle}});
  return absl::OkStatus();
}

}  // namespace

absl::Status BenchGpuDecode(BenchSession& session) {
  const BenchFlags& flags = session.flags;
  session.report.Section(
      "Decode: one token for each sequence, two steps in flight",
      "context batch  acp       median ms (min .. max)   tokens/s  weights MB  pages MB  floor ms  "
      "/floor  of memory  vs off");
  // Every measurement moves the sequences on by a few tokens; two more passes, one unpipelined.
  const auto drift = (StepsOf(flags) + 1) *
                     static_cast<int64_t>(flags.batch_sizes.size() * flags.contexts.size() + 2);
  std::map<Key, double> off;
  for (AcpMode mode : flags.modes) {
    const int64_t slots = flags.batch_sizes.back();
    auto model = session.Load(mode, slots, flags.contexts.back() + drift);
    if (!model.ok()) return model.status();
    Pipeline sequences(session, *model, static_cast<size_t>(slots));
    for (int64_t context : flags.contexts) {
      if (absl::Status s = sequences.ExtendTo(context, static_cast<size_t>(slots)); !s.ok()) {
        return s;
      }
      for (int64_t batch : flags.batch_sizes) {
        const auto run = sequences.Measure(static_cast<size_t>(batch));
        if (!run.ok()) return run.status();
        Report(session, *model, mode, {context, batch}, *run, off);
      }
    }
    if (flags.model.enforce_eager) continue;
    if (absl::Status s = MeasureIdle(session, *model, sequences, mode, flags.contexts.front());
        !s.ok()) {
      return s;
    }
  }
  return absl::OkStatus();
}

}  // namespace fox
