// fox-bench decode on a GPU: the steady state of decoding as the engine runs it: two steps in
// flight, tokens sampled on the device, decode steps as captured graphs. The floor is that of its
// counted bytes at the measured read bandwidth. For one sequence the share of time in which the
// device had nothing to do is measured, too: the same graph replayed back to back against the
// steady state.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tests/bench/decode_slots.h"
#include "tests/engine/run/graph_replay.h"

namespace fox {
namespace {

constexpr int64_t kWarmUpSteps = 8;
constexpr int64_t kStepsPerSample = 8;
constexpr int kReplays = 200;

int64_t StepsOf(const BenchFlags& flags) {
  return kWarmUpSteps + 4 * flags.repeat * kStepsPerSample;
}

// Decodes with as many steps in flight as the runner takes.
class Pipeline {
 public:
  Pipeline(const BenchSession& session, BenchModel& model, size_t slots)
      : session_(session), model_(model), slots_(session, model, slots) {}

  DecodeSlots& slots() { return slots_; }

  // Seconds of each group of kStepsPerSample steps, by step, after the warm-up.
  absl::StatusOr<std::vector<double>> Run(size_t batch, int64_t samples) {
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
    slots_.TakeCounts(samples * kStepsPerSample, run);
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
    StepPlan plan = slots_.NextStep(batch);
    for (PlannedSequence& seq : plan.sequences) {
      seq.token_ids = {kLastSampledToken};
      seq.sample = SampleRow{.seed = static_cast<uint64_t>(seq.slot),
                             .position = static_cast<uint64_t>(seq.position) + 1};
    }
    return plan;
  }

  absl::Status Collect(size_t batch, bool count) {
    const auto result = model_.runner->Collect();
    if (!result.ok()) return result.status();
    for (size_t slot = 0; slot < batch; ++slot) {
      if (!result->sampled[slot].ok()) return result->sampled[slot].status();
    }
    slots_.Collect(*result, batch, count);
    return absl::OkStatus();
  }

  const BenchSession& session_;
  BenchModel& model_;
  DecodeSlots slots_;
};

// One sequence again: how much of a step's time the device idles. Leaves the cache in disorder.
absl::Status MeasureIdle(BenchSession& session, BenchModel& model, Pipeline& sequences,
                         AcpMode mode, int64_t context) {
  sequences.slots().Forget();
  if (absl::Status s = sequences.slots().ExtendTo(context, 1); !s.ok()) return s;
  auto seconds = sequences.Run(1, 4 * session.flags.repeat);
  if (!seconds.ok()) return seconds.status();
  const Summary step = Summarize(*std::move(seconds));
  if (absl::Status s = GraphReplay::Run(*model.runner, kReplays); !s.ok()) return s;
  const double start = Now();
  if (absl::Status s = GraphReplay::Run(*model.runner, kReplays); !s.ok()) return s;
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

// Every measurement moves the sequences on by a few tokens; two more passes, one unpipelined.
int64_t DriftOf(const BenchFlags& flags) {
  return (StepsOf(flags) + 1) * static_cast<int64_t>(flags.batch_sizes.size() + 2);
}

// A model for sequences of a context. Batches whose pages would not fit unpruned are left out.
absl::StatusOr<BenchModel> LoadForBatches(BenchSession& session, AcpMode mode, int64_t context,
                                          int64_t limit, std::vector<int64_t>* batches) {
  while (true) {
    auto model = session.Load(mode, batches->back(), context + DriftOf(session.flags), limit);
    if (!absl::IsResourceExhausted(model.status()) || batches->size() == 1) return model;
    session.report.Note(absl::StrCat("left out: ", model.status().message()));
    batches->pop_back();
  }
}

// All batch sizes at one context under one bound. `limit`: the longest sequence that is allowed; 0:
// as long as they grow here. Rows under a limit are of a kind of their own.
absl::Status MeasureContext(BenchSession& session, DecodeTable& table, AcpMode mode,
                            int64_t context, int64_t limit) {
  const BenchFlags& flags = session.flags;
  const bool eager = flags.model.enforce_eager;
  std::vector<int64_t> batches = flags.batch_sizes;
  auto model = LoadForBatches(session, mode, context, limit, &batches);
  if (!model.ok()) return model.status();
  const auto count = static_cast<size_t>(batches.back());
  Pipeline sequences(session, *model, count);
  if (absl::Status s = sequences.slots().ExtendTo(context, count); !s.ok()) return s;
  for (int64_t batch : batches) {
    const auto run = sequences.Measure(static_cast<size_t>(batch));
    if (!run.ok()) return run.status();
    DecodeTable::Extras extras;
    extras.more = {{"graphs", !eager}};
    if (limit > 0) {
      extras.below = absl::StrFormat("  allowed: %d tokens", limit);
      extras.more["bench"] = "decode_under_limit";
      extras.more["max_model_len"] = limit;
    }
    if (eager) {
      absl::StrAppend(&extras.below, "\n", SharesLine(run->ops, run->total));
      extras.more["shares"] = SharesJson(run->ops, run->total);
    }
    table.Add(*model, mode, context, batch, *run, extras);
  }
  if (eager || limit > 0 || context != flags.contexts.front()) return absl::OkStatus();
  return MeasureIdle(session, *model, sequences, mode, context);
}

}  // namespace

absl::Status BenchGpuDecode(BenchSession& session) {
  session.report.Section(
      "Decode: one token for each sequence, two steps in flight",
      "context batch  acp       median ms (min .. max)   tokens/s  weights MB  pages MB  floor ms  "
      "/floor  of memory  vs off");
  DecodeTable table(session);
  std::vector<int64_t> limits = session.flags.max_model_lens;
  if (limits.empty()) limits = {0};
  for (int64_t limit : limits) {
    for (AcpMode mode : session.flags.modes) {
      for (int64_t context : session.flags.contexts) {
        absl::Status s = MeasureContext(session, table, mode, context, limit);
        if (!s.ok()) return s;
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace fox
