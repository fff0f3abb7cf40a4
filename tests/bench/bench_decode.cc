// fox-bench decode: the steady state of decoding as the engine runs it, by batch size, context and
// bound: on a GPU two steps in flight, tokens sampled on the device, steps as captured graphs. With
// --prompt-rows a step also has the first rows of a prompt, as steps have while prompts arrive. The
// floor of a step is the larger of two times: its counted bytes (linear weights once, and the KV
// pages that attention visited) over the measured read bandwidth, and its multiplications over the
// measured peak.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tests/bench/bench_session.h"

namespace fox {
namespace {

struct DecodeRun {
  Summary seconds;            // of one step
  double cpu_seconds = 0;     // a step
  double visited_blocks = 0;  // a step
  double live_pages = 0;      // a step
};

// Steps that warm up, and steps whose mean is one sample.
int64_t WarmUpSteps(const BenchSession& session) { return session.on_gpu ? 8 : 3; }
int64_t StepsPerSample(const BenchSession& session) { return session.on_gpu ? 8 : 1; }
int64_t StepsOf(const BenchSession& session) {
  return 4 * session.flags.repeat * StepsPerSample(session);
}

// Sequences that decode in lockstep, with as many steps in flight as the runner takes.
class Decoder {
 public:
  Decoder(const BenchSession& session, BenchModel& model, size_t slots)
      : session_(session), model_(model), position_(slots, 0), stats_(slots) {}

  absl::Status PrefillAll(int64_t context) {
    for (size_t slot = 0; slot < position_.size(); ++slot) {
      const auto stats = Prefill(session_, model_, static_cast<int32_t>(slot), 0, context);
      if (!stats.ok()) return stats.status();
      stats_[slot] = *stats;
      position_[slot] = context;
    }
    return absl::OkStatus();
  }

  // Measures steps of the first `batch` sequences.
  absl::StatusOr<DecodeRun> Measure(size_t batch) {
    const int64_t warm_up = WarmUpSteps(session_), group = StepsPerSample(session_);
    const int64_t steps = warm_up + StepsOf(session_);
    const int depth = model_.runner->limits().depth;
    visited_ = live_ = 0;
    DecodeRun run;
    std::vector<double> samples;
    int64_t submitted = 0;
    double start = 0, cpu_start = 0;
    for (int64_t step = 0; step < steps; ++step) {
      for (; submitted < std::min(steps, step + depth); ++submitted) {
        if (absl::Status status = model_.runner->Submit(Plan(batch)); !status.ok()) return status;
      }
      if (absl::Status status = Collect(batch, step >= warm_up); !status.ok()) return status;
      const int64_t measured = step + 1 - warm_up;
      if (measured < 0 || measured % group != 0) continue;
      const double now = Now();
      if (measured > 0) {
        samples.push_back((now - start) / static_cast<double>(group));
      } else {
        cpu_start = CpuNow();
      }
      start = now;
    }
    run.seconds = Summarize(std::move(samples));
    run.cpu_seconds = (CpuNow() - cpu_start) / static_cast<double>(steps - warm_up);
    run.visited_blocks = static_cast<double>(visited_) / static_cast<double>(steps - warm_up);
    run.live_pages = static_cast<double>(live_) / static_cast<double>(steps - warm_up);
    return run;
  }

 private:
  StepPlan Plan(size_t batch) {
    StepPlan plan;
    for (size_t slot = 0; slot < batch; ++slot) {
      PlannedSequence& seq = plan.sequences.emplace_back();
      seq.slot = static_cast<int32_t>(slot);
      seq.position = position_[slot]++;
      seq.logit_rows = {0};
      seq.log_tolerance = model_.log_tolerance;
      if (model_.runner->limits().samples_on_device) {
        seq.token_ids = {kLastSampledToken};
        seq.sample = SampleRow{.seed = static_cast<uint64_t>(slot),
                               .position = static_cast<uint64_t>(seq.position) + 1};
      } else {
        seq.token_ids = TokensOfText(session_.text, seq.position + seq.slot * 997, 1);
      }
    }
    if (session_.flags.prompt_rows > 0) {
      PlannedSequence& prompt = plan.sequences.emplace_back();
      prompt.slot = static_cast<int32_t>(position_.size());  // behind the decoding ones
      prompt.token_ids = TokensOfText(session_.text, 0, session_.flags.prompt_rows);
      prompt.log_tolerance = model_.log_tolerance;
      plan.release_slots = {prompt.slot};  // of the step before
    }
    return plan;
  }

  // Collects a step. `count`: adds its visited blocks and live pages to the sums.
  absl::Status Collect(size_t batch, bool count) {
    const auto result = model_.runner->Collect();
    if (!result.ok()) return result.status();
    for (size_t slot = 0; slot < batch; ++slot) {
      if (session_.on_gpu && !result->sampled[slot].ok()) return result->sampled[slot].status();
      const AcpStats& now = result->stats[slot];
      if (count) {
        visited_ += now.blocks_total - now.blocks_pruned -
                    (stats_[slot].blocks_total - stats_[slot].blocks_pruned);
        live_ += now.live_pages();
      }
      stats_[slot] = now;
    }
    return absl::OkStatus();
  }

  const BenchSession& session_;
  BenchModel& model_;
  std::vector<int64_t> position_;
  std::vector<AcpStats> stats_;
  int64_t visited_ = 0, live_ = 0;
};

void Report(BenchSession& session, const BenchModel& model, AcpMode mode, int64_t context,
            int64_t batch, const DecodeRun& run) {
  const auto weights = static_cast<double>(model.runner->weights().linear_bytes());
  const double pages = run.visited_blocks * model.BlockBytes();
  const int64_t prompt_rows = session.flags.prompt_rows;
  const double flops = model.LinearFlopsPerRow() * static_cast<double>(batch + prompt_rows) +
                       model.HeadFlopsPerRow() * static_cast<double>(batch) +
                       run.visited_blocks * 4.0 * kPageTokens * session.config.head_dim;
  const bool graphs = session.on_gpu && prompt_rows == 0 && !session.flags.model.enforce_eager;
  const double reading = (weights + pages) / session.peaks.read_bytes_per_second.median;
  const double floor = std::max(reading, flops / session.peaks.flops_per_second.median);
  const double median = run.seconds.median, fraction = reading / median;
  const double tokens_per_second = static_cast<double>(batch) / median;
  nlohmann::ordered_json row = {{"bench", "decode"},
                                {"context", context},
                                {"batch_size", batch},
                                {"acp", NameOf(mode)},
                                {"prompt_rows", prompt_rows},
                                {"graphs", graphs},
                                {"seconds", ToJson(run.seconds)},
                                {"cpu_seconds", run.cpu_seconds},
                                {"tokens_per_second", tokens_per_second},
                                {"weight_bytes", weights},
                                {"page_bytes_read", pages},
                                {"live_pages", run.live_pages},
                                {"floor_seconds", floor},
                                {"over_floor", median / floor},
                                {"fraction_of_read_bandwidth", fraction}};
  session.report.Row(
      absl::StrFormat("%7d %5d  %-9s %8.3f (%.3f .. %.3f) %9.0f %8.1f %8.1f %8.3f %7.2f %8.1f%%",
                      context, batch, NameOf(mode), median * 1e3, run.seconds.min * 1e3,
                      run.seconds.max * 1e3, tokens_per_second, weights / 1e6, pages / 1e6,
                      floor * 1e3, median / floor, 100 * fraction),
      std::move(row));
}

// A model for sequences of `context` tokens, which every measurement extends by a few, and for the
// prompt beside them. Removes batch sizes whose unpruned pages would not fit into memory.
absl::StatusOr<BenchModel> LoadForBatches(BenchSession& session, AcpMode mode, int64_t context,
                                          std::vector<int64_t>* batches) {
  const int64_t drift =
      (WarmUpSteps(session) + StepsOf(session)) * static_cast<int64_t>(batches->size());
  const int64_t prompt_rows = session.flags.prompt_rows, prompts = prompt_rows > 0 ? 1 : 0;
  while (true) {
    auto model =
        session.Load(mode, batches->back() + prompts, std::max(context + drift, prompt_rows));
    if (!absl::IsResourceExhausted(model.status()) || batches->size() == 1) return model;
    session.report.Note(absl::StrCat("left out: ", model.status().message()));
    batches->pop_back();
  }
}

}  // namespace

absl::Status BenchDecode(BenchSession& session) {
  session.report.Section(
      "Decode: one token for each sequence",
      "context batch  acp       median ms (min .. max)   tokens/s  weights MB  pages MB  floor ms  "
      "/floor  of memory");
  for (AcpMode mode : session.flags.modes) {
    for (int64_t context : session.flags.contexts) {
      std::vector<int64_t> batches = session.flags.batch_sizes;
      auto model = LoadForBatches(session, mode, context, &batches);
      if (!model.ok()) return model.status();
      Decoder decoder(session, *model, static_cast<size_t>(batches.back()));
      if (absl::Status s = decoder.PrefillAll(context); !s.ok()) return s;
      for (int64_t batch : batches) {
        const auto run = decoder.Measure(static_cast<size_t>(batch));
        if (!run.ok()) return run.status();
        Report(session, *model, mode, context, batch, *run);
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace fox
