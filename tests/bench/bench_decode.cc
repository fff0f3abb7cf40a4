// fox-bench decode: time of one step, by batch size, context and bound, against the floor of its
// counted bytes (linear weights once, and the KV pages that attention visited) at the measured read
// bandwidth. A step that reads less than the last-level cache holds can beat memory, so each row is
// also compared with reading a buffer as large as its own bytes, right after it.
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tests/bench/decode_slots.h"

namespace fox {
namespace {

constexpr int64_t kWarmUpSteps = 3;

int64_t StepsOf(const BenchFlags& flags) { return 4 * flags.repeat; }

// The step's seconds.
absl::StatusOr<double> Step(const BenchSession& session, BenchModel& model, DecodeSlots& slots,
                            size_t batch) {
  StepPlan plan = slots.NextStep(batch);
  for (PlannedSequence& seq : plan.sequences) {
    seq.token_ids = session.TokensAt(seq.position + seq.slot * 997, 1);
  }
  const double start = Now();
  const auto result = model.runner->Run(plan);
  const double seconds = Now() - start;
  if (!result.ok()) return result.status();
  slots.Collect(*result, batch, true);
  return seconds;
}

absl::StatusOr<DecodeRun> Measure(const BenchSession& session, BenchModel& model,
                                  DecodeSlots& slots, size_t batch) {
  DecodeRun run;
  for (int64_t i = 0; i < kWarmUpSteps; ++i) {
    if (const auto step = Step(session, model, slots, batch); !step.ok()) return step.status();
  }
  model.ops->Take();
  slots.TakeCounts(kWarmUpSteps, run);
  run.mean_position = slots.MeanPosition(batch);
  std::vector<double> samples;
  for (int64_t i = 0; i < StepsOf(session.flags); ++i) {
    const auto step = Step(session, model, slots, batch);
    if (!step.ok()) return step.status();
    samples.push_back(*step);
    run.total += *step;
  }
  run.ops = model.ops->Take();
  slots.TakeCounts(StepsOf(session.flags), run);
  run.seconds = Summarize(std::move(samples));
  return run;
}

void Report(const BenchSession& session, const BenchModel& model, AcpMode mode, int64_t context,
            int64_t batch, const DecodeRun& run, DecodeTable& table) {
  const double flops =
      (model.LinearFlopsPerRow() + model.HeadFlopsPerRow()) * static_cast<double>(batch) +
      run.visited_blocks * 4.0 * kPageTokens * session.config.head_dim;
  const double bytes = StepBytes(model, run);
  const Summary resident = MeasureReadBandwidth(static_cast<int64_t>(bytes), 9);
  const double resident_fraction = bytes / run.seconds.median / resident.median;
  DecodeTable::Extras extras;
  extras.arithmetic = flops / session.peaks.flops_per_second.median;
  extras.cells = absl::StrFormat(" %8.1f%%", 100 * resident_fraction);
  extras.below = absl::StrCat("\n", SharesLine(run.ops, run.total));
  extras.more = {{"mean_position", run.mean_position},
                 {"flops", flops},
                 {"resident_read_bytes_per_second", ToJson(resident)},
                 {"fraction_of_resident_bandwidth", resident_fraction},
                 {"shares", SharesJson(run.ops, run.total)}};
  table.Add(model, mode, context, batch, run, extras);
}

}  // namespace

absl::Status BenchDecode(BenchSession& session) {
  const BenchFlags& flags = session.flags;
  if (session.on_gpu) return BenchGpuDecode(session);
  session.report.Section(
      "Decode: one token for each sequence",
      "context batch  acp       median ms (min .. max)   tokens/s  weights MB  pages MB  floor ms  "
      "/floor  of memory  of own size  vs off");
  // Every measurement moves the sequences on by a few tokens.
  const auto drift = (StepsOf(flags) + kWarmUpSteps) *
                     static_cast<int64_t>(flags.batch_sizes.size() * flags.contexts.size());
  DecodeTable table(session);
  for (AcpMode mode : flags.modes) {
    const int64_t slots = flags.batch_sizes.back();
    auto model = session.Load(mode, slots, flags.contexts.back() + drift);
    if (!model.ok()) return model.status();
    DecodeSlots sequences(session, *model, static_cast<size_t>(slots));
    for (int64_t context : flags.contexts) {
      if (absl::Status s = sequences.ExtendTo(context, static_cast<size_t>(slots)); !s.ok()) {
        return s;
      }
      for (int64_t batch : flags.batch_sizes) {
        const auto run = Measure(session, *model, sequences, static_cast<size_t>(batch));
        if (!run.ok()) return run.status();
        Report(session, *model, mode, context, batch, *run, table);
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace fox
