// Positions, counters and floors of decode steps. See decode_slots.h.
#include "tests/bench/decode_slots.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace fox {

absl::Status DecodeSlots::ExtendTo(int64_t context, size_t count) {
  for (size_t slot = 0; slot < count; ++slot) {
    if (position_[slot] >= context) continue;
    const auto stats = Prefill(session_, model_, static_cast<int32_t>(slot), position_[slot],
                               context - position_[slot]);
    if (!stats.ok()) return stats.status();
    stats_[slot] = *stats;
    position_[slot] = context;
  }
  return absl::OkStatus();
}

void DecodeSlots::Forget() { std::fill(position_.begin(), position_.end(), 0); }

StepPlan DecodeSlots::NextStep(size_t batch) {
  StepPlan plan;
  for (size_t slot = 0; slot < batch; ++slot) {
    PlannedSequence& seq = plan.sequences.emplace_back();
    seq.slot = static_cast<int32_t>(slot);
    seq.position = position_[slot]++;
    seq.logit_rows = {0};
    seq.log_tolerance = model_.log_tolerance;
  }
  return plan;
}

double DecodeSlots::MeanPosition(size_t batch) const {
  const auto end = position_.begin() + static_cast<ptrdiff_t>(batch);
  return static_cast<double>(std::accumulate(position_.begin(), end, int64_t{0})) /
         static_cast<double>(batch);
}

void DecodeSlots::Collect(const StepResult& result, size_t batch, bool count) {
  for (size_t slot = 0; slot < batch; ++slot) {
    const AcpStats& now = result.stats[slot];
    if (count) {
      visited_ += now.blocks_total - now.blocks_pruned -
                  (stats_[slot].blocks_total - stats_[slot].blocks_pruned);
      live_ += now.live_pages();
    }
    stats_[slot] = now;
  }
}

void DecodeSlots::TakeCounts(int64_t steps, DecodeRun& run) {
  run.visited_blocks = static_cast<double>(std::exchange(visited_, 0)) / static_cast<double>(steps);
  run.live_pages = static_cast<double>(std::exchange(live_, 0)) / static_cast<double>(steps);
}

double StepBytes(const BenchModel& model, const DecodeRun& run) {
  return static_cast<double>(model.runner->weights().linear_bytes()) +
         run.visited_blocks * model.BlockBytes();
}

void DecodeTable::Add(const BenchModel& model, AcpMode mode, int64_t context, int64_t batch,
                      const DecodeRun& run, const Extras& extras) {
  const double bytes = StepBytes(model, run), pages = run.visited_blocks * model.BlockBytes();
  const double reading = bytes / session_.peaks.read_bytes_per_second.median;
  const double floor = std::max(reading, extras.arithmetic);
  const double median = run.seconds.median, fraction = reading / median;
  if (mode == AcpMode::kOff) off_[{context, batch}] = median;
  const auto off = off_.find({context, batch});
  const double gain = off != off_.end() ? off->second / median : 0;
  const double tokens_per_second = static_cast<double>(batch) / median;
  nlohmann::ordered_json row = {{"bench", "decode"},
                                {"context", context},
                                {"batch_size", batch},
                                {"acp", NameOf(mode)},
                                {"seconds", ToJson(run.seconds)},
                                {"tokens_per_second", tokens_per_second},
                                {"weight_bytes", bytes - pages},
                                {"page_bytes_read", pages},
                                {"live_pages", run.live_pages},
                                {"floor_seconds", floor},
                                {"over_floor", median / floor},
                                {"fraction_of_read_bandwidth", fraction},
                                {"speedup_over_off", gain}};
  row.update(extras.more);
  session_.report.Row(
      absl::StrFormat("%7d %5d  %-9s %8.3f (%.3f .. %.3f) %9.0f %8.1f %8.1f %8.3f %7.2f %8.1f%%"
                      "%s %6.2fx%s",
                      context, batch, NameOf(mode), median * 1e3, run.seconds.min * 1e3,
                      run.seconds.max * 1e3, tokens_per_second, (bytes - pages) / 1e6, pages / 1e6,
                      floor * 1e3, median / floor, 100 * fraction, extras.cells, gain,
                      extras.below),
      std::move(row));
}

}  // namespace fox
