// Running means per octave. See page_forecast.h.
#include "engine/schedule/page_forecast.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "kernels/paged_kv.h"

namespace fox {
namespace {

int64_t BeginOf(int octave) { return octave == 0 ? 0 : int64_t{1} << octave; }
int64_t EndOf(int octave) { return int64_t{2} << octave; }

}  // namespace

int PageForecast::OctaveOf(int64_t row) {
  return row < 2 ? 0 : static_cast<int>(std::bit_width(static_cast<uint64_t>(row))) - 1;
}

// A chunk that passes several octaves is taken to have kept as much in each.
void PageForecast::Observe(int32_t slot, int64_t tokens, int64_t pages) {
  Slot& seen = slots_[static_cast<size_t>(slot)];
  const int64_t rows = PagesFor(tokens);
  const double gained = static_cast<double>(pages) - seen.pages;
  const auto passed = static_cast<double>(rows - seen.rows);
  seen.pages = static_cast<double>(pages);
  if (rows <= seen.rows) {  // evicted late
    seen.gained += gained;
    return;
  }
  while (seen.rows < rows) {
    const int octave = OctaveOf(seen.rows);
    const int64_t end = std::min(rows, EndOf(octave));
    seen.gained += gained * static_cast<double>(end - seen.rows) / passed;
    seen.rows = end;
    if (end < EndOf(octave)) break;
    Learn(octave, EndOf(octave) - BeginOf(octave), seen.gained);
    seen.gained = 0;
  }
}

void PageForecast::Release(int32_t slot) {
  Slot& seen = slots_[static_cast<size_t>(slot)];
  const int octave = OctaveOf(seen.rows);
  if (seen.rows > BeginOf(octave)) Learn(octave, seen.rows - BeginOf(octave), seen.gained);
  seen = {};
}

void PageForecast::Learn(int octave, int64_t rows, double gained) {
  Octave& mean = octaves_[static_cast<size_t>(octave)];
  const double kept = gained / (lists_ * static_cast<double>(rows));
  const double weight =
      static_cast<double>(rows) / static_cast<double>(EndOf(octave) - BeginOf(octave));
  mean.weight = std::min(mean.weight + weight, kMemory);
  const double gain = weight / mean.weight;
  const double error = kept - mean.kept;
  mean.kept += gain * error;
  mean.variance = (1 - gain) * (mean.variance + gain * error * error);
}

const PageForecast::Octave& PageForecast::Known(int octave) const {
  while (octave > 0 && octaves_[static_cast<size_t>(octave)].weight < kEnough) --octave;
  return octaves_[static_cast<size_t>(octave)];
}

PageForecast::Estimate PageForecast::Between(int64_t from, int64_t to) const {
  Estimate sum;
  for (int octave = OctaveOf(from); octave < kOctaves && BeginOf(octave) < to; ++octave) {
    const Octave& known = Known(octave);
    const int64_t rows = std::min(to, EndOf(octave)) - std::max(from, BeginOf(octave));
    const double pages = lists_ * static_cast<double>(std::max<int64_t>(0, rows));
    sum.pages += pages * std::clamp(known.kept, 0.0, 1.0);
    sum.deviation += pages * std::sqrt(known.variance);
  }
  return sum;
}

PageForecast::Estimate PageForecast::At(int64_t tokens, int32_t slot) const {
  const int64_t rows = PagesFor(tokens);
  const Estimate whole = Between(0, rows);
  if (slot < 0) return whole;
  const Slot& seen = slots_[static_cast<size_t>(slot)];
  Estimate estimate = Between(seen.rows, rows);
  const double expected = Between(0, seen.rows).pages;
  const double excess = expected > 0 ? std::max(1.0, seen.pages / expected) : 1.0;
  estimate.pages = std::max(whole.pages, seen.pages + excess * estimate.pages);
  return estimate;
}

double PageForecast::PerToken(int64_t tokens) const {
  return lists_ * std::clamp(Known(OctaveOf(PagesFor(tokens))).kept, 0.0, 1.0) / kPageTokens;
}

}  // namespace fox
