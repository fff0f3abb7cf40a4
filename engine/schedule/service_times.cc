// Running means that split a step's time among its parts. See service_times.h.
#include "engine/schedule/service_times.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "kernels/paged_kv.h"

namespace fox {
namespace {

constexpr double kGain = 0.2;     // of the newest step
constexpr double kOutlier = 4.0;  // one step counts for at most so many times what was expected

void Mean(double value, double* mean) {
  *mean = *mean == 0 ? value : *mean + kGain * (std::min(value, kOutlier * *mean) - *mean);
}

}  // namespace

// Each part is corrected in proportion to its share of the expected time: what a step does not
// contain is left as it was, and steps of one mixture are told right whatever the split.
void ServiceTimes::RecordStep(int64_t prefill, int64_t decodes, Seconds seconds, bool best_effort) {
  if (prefill + decodes == 0 || !(seconds > 0)) return;
  const auto p = static_cast<double>(prefill);
  const auto d = static_cast<double>(decodes);
  if (best_effort) {
    best_effort_ = std::max(seconds - p * prefill_ - d * decode_, 0.0);
    return;
  }
  ++steps_;
  if (prefill > 0 && prefill_ == 0) {
    prefill_ = std::max(seconds - d * decode_, seconds / 4) / (p + (decode_ == 0 ? d : 0));
  }
  if (decodes > 0 && decode_ == 0) {
    decode_ = std::max(seconds - p * prefill_, seconds / 4) / (d + (prefill_ == 0 ? p : 0));
  }
  const double expected = p * prefill_ + d * decode_;
  const double error = std::clamp(seconds / expected, 1 / kOutlier, kOutlier) - 1;
  prefill_ *= 1 + kGain * error * (p * prefill_ / expected);
  decode_ *= 1 + kGain * error * (d * decode_ / expected);
  if (decodes > 0) Mean(seconds, &step_);
  if (prefill > 0) Mean((p * prefill_ + d * decode_) / (p * prefill_), &slowdown_);
}

void ServiceTimes::RecordSwap(int64_t prefill, int64_t decodes, int64_t bytes, double rate,
                              Seconds seconds) {
  const bool unknown = (prefill > 0 && prefill_ == 0) || (decodes > 0 && decode_ == 0);
  if (bytes == 0 || unknown || !(seconds > 0)) return;
  const Seconds other =
      static_cast<double>(prefill) * prefill_ + static_cast<double>(decodes) * decode_;
  swap_ += std::clamp(seconds - other, 0.0, kOutlier * Swap(bytes, rate));
  swap_bytes_ += static_cast<double>(bytes);
}

// The rate counts as that of so many bytes measured.
Seconds ServiceTimes::Swap(int64_t bytes, double rate) const {
  constexpr double kPrior = 1 << 28;
  const Seconds measured = kPrior / rate + swap_;
  return static_cast<double>(bytes) * measured / (kPrior + swap_bytes_);
}

void ServiceTimes::RecordEnd(int64_t generated, int64_t max_tokens, Seconds seconds) {
  mean_service_ += 0.05 * (std::max(seconds, 0.0) - mean_service_);
  RecordTokens(generated);
  if (max_tokens <= 0) return;
  const double share = static_cast<double>(generated) / static_cast<double>(max_tokens);
  length_share_ += 0.05 * (std::clamp(share, 0.0, 1.0) - length_share_);
}

void ServiceTimes::RecordTokens(int64_t generated) {
  const auto tokens = static_cast<double>(generated);
  most_tokens_ = std::max(tokens, most_tokens_ + 0.05 * (tokens - most_tokens_));
}

int64_t ServiceTimes::PrefillTokens(Seconds seconds, int64_t decodes) const {
  if (prefill_ == 0) return kPageTokens;
  const double tokens = (seconds - static_cast<double>(decodes) * decode_) / prefill_;
  const double most = 1e9;
  return std::max<int64_t>(kPageTokens, static_cast<int64_t>(std::clamp(tokens, 0.0, most)));
}

int64_t ServiceTimes::BestEffortTurn() const {
  if (step_ == 0) return 1;
  const double turn = best_effort_ / step_ * (1 / kBestEffortShare - 1);
  return 1 + static_cast<int64_t>(std::min(turn, static_cast<double>(kLongestTurn)));
}

Seconds ServiceTimes::FirstToken(int64_t prompt_tokens) const {
  return static_cast<double>(prompt_tokens) * prefill_ * std::min(slowdown_, kOutlier);
}

Seconds ServiceTimes::Service(int64_t prompt_tokens, int64_t max_tokens) const {
  return FirstToken(prompt_tokens) + ExpectedTokens(max_tokens) * step_;
}

// All that is there, less what is still running when the request starts: half of the work of its
// neighbours, if they came one after another. Sooner where enough of those that run end before.
Seconds ServiceTimes::Wait(const std::vector<Work>& running, const Work& ahead,
                           int64_t slots) const {
  Work all = ahead;
  for (const Work& one : running) all.Add(one);
  if (all.requests < static_cast<double>(slots)) {  // it shares the steps of those that run
    return ahead.prefill_tokens * prefill_ * std::min(slowdown_, kOutlier);
  }
  const double half_of_neighbours = 0.5 * static_cast<double>(slots - 1) / all.requests;
  const Seconds wait = Cost(all) * (1 - half_of_neighbours);
  const double ends = std::ceil(all.requests - static_cast<double>(slots)) + 1;
  if (ends > static_cast<double>(running.size())) return wait;
  return std::min(wait, EndOf(running, static_cast<size_t>(ends)));
}

// Prompts are computed from the shortest on with half of a step's tokens; the oldest, whichever it
// is, has the others.
Seconds ServiceTimes::EndOf(std::vector<Work> running, size_t number) const {
  std::sort(running.begin(), running.end(),
            [](const Work& a, const Work& b) { return a.prefill_tokens < b.prefill_tokens; });
  double all = 0, prompts = 0;
  for (const Work& one : running) all += one.prefill_tokens;
  std::vector<Seconds> ends;
  for (const Work& one : running) {
    prompts += one.prefill_tokens;
    const double computed = std::min(2 * prompts, all);
    ends.push_back(computed * prefill_ * std::min(slowdown_, kOutlier) + one.decode_tokens * step_);
  }
  const auto end = ends.begin() + static_cast<std::ptrdiff_t>(number) - 1;
  std::nth_element(ends.begin(), end, ends.end());
  return *end;
}

}  // namespace fox
