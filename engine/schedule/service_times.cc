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

}  // namespace

// Each part is corrected in proportion to its share of the expected time: what a step does not
// contain is left as it was, and steps of one mixture are told right whatever the split.
void ServiceTimes::RecordStep(int64_t prefill, int64_t decodes, Seconds seconds) {
  if (prefill + decodes == 0 || !(seconds > 0)) return;
  const auto p = static_cast<double>(prefill);
  const auto d = static_cast<double>(decodes);
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
  if (decodes == 0) return;
  step_ = step_ == 0 ? seconds : step_ + kGain * (std::min(seconds, kOutlier * step_) - step_);
}

void ServiceTimes::RecordEnd(int64_t generated, int64_t max_tokens, Seconds seconds) {
  mean_service_ += 0.05 * (std::max(seconds, 0.0) - mean_service_);
  RecordPause(generated);
  if (max_tokens <= 0) return;
  const double share = static_cast<double>(generated) / static_cast<double>(max_tokens);
  length_share_ += 0.05 * (std::clamp(share, 0.0, 1.0) - length_share_);
}

void ServiceTimes::RecordPause(int64_t unread) {
  const auto tokens = static_cast<double>(unread);
  most_tokens_ = std::max(tokens, most_tokens_ + 0.05 * (tokens - most_tokens_));
}

int64_t ServiceTimes::PrefillTokens(Seconds seconds, int64_t decodes) const {
  if (prefill_ == 0) return kPageTokens;
  const double tokens = (seconds - static_cast<double>(decodes) * decode_) / prefill_;
  const double most = 1e9;
  return std::max<int64_t>(kPageTokens, static_cast<int64_t>(std::clamp(tokens, 0.0, most)));
}

Seconds ServiceTimes::Service(int64_t prompt_tokens, int64_t max_tokens) const {
  return Prefill(prompt_tokens) + ExpectedTokens(max_tokens) * step_;
}

// All that is there, less what is still running when the request starts: half of the work of its
// neighbours, if they came one after another.
Seconds ServiceTimes::Wait(const Work& running, const Work& ahead, int64_t slots) const {
  Work all = ahead;
  all.Add(running);
  if (all.requests < static_cast<double>(slots)) {  // it shares the steps of those that run
    return ahead.prefill_tokens * prefill_;
  }
  return Cost(all) * (1 - 0.5 * static_cast<double>(slots - 1) / all.requests);
}

}  // namespace fox
