// CallMetrics: bounds of the buckets, and causes of ends. The bounds contain vLLM's, so that its
// dashboards can be fed, and finer ones, because a step of a small model takes a millisecond.
#include "server/calls/call_metrics.h"

#include <optional>

namespace fox {
namespace {

constexpr double kMicrosecond = 1e-6;

std::vector<double> RequestBounds() {
  return {0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.8, 1,   1.5, 2,    2.5, 5,
          10,    15,   20,    30,   40,  50,  60,  120, 240, 480, 960, 1920, 7680};
}

// 1, 2, 5, 10 ... 10^6.
std::vector<double> LengthBounds() {
  std::vector<double> bounds;
  for (double decade = 1; decade < 1e6; decade *= 10) {
    for (const double digit : {1, 2, 5}) bounds.push_back(digit * decade);
  }
  bounds.push_back(1e6);
  return bounds;
}

std::optional<CancelCause> CauseOf(const absl::Status& status, v1::FinishReason reason) {
  using Code = absl::StatusCode;
  static constexpr std::pair<Code, CancelCause> kCauses[] = {
      {Code::kCancelled, CancelCause::kClient},
      {Code::kDeadlineExceeded, CancelCause::kDeadline},
      {Code::kAborted, CancelCause::kStall},
      {Code::kUnavailable, CancelCause::kDrain}};
  if (status.ok() && reason == v1::ABORT) return CancelCause::kAbort;
  for (const auto& [code, cause] : kCauses) {
    if (code == status.code()) return cause;
  }
  return std::nullopt;
}

}  // namespace

CallMetrics::CallMetrics()
    : time_to_first_token({0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75,
                           1,     2.5,    5,     7.5,  10,   20,   40,   80,   160, 640,  2560},
                          kMicrosecond),
      inter_token(
          {0.0005, 0.001, 0.0015, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15,
           0.2,    0.3,   0.4,    0.5,   0.75,  1,     2.5,    5,    7.5,   10,   20,    40,  80},
          kMicrosecond),
      queue(RequestBounds(), kMicrosecond),
      prefill(RequestBounds(), kMicrosecond),
      decode(RequestBounds(), kMicrosecond),
      end_to_end(RequestBounds(), kMicrosecond),
      prompt_tokens(LengthBounds(), 1),
      generation_tokens(LengthBounds(), 1),
      kept_share({0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1}, kMicrosecond) {}

void CallMetrics::OnCallEnd(const absl::Status& status, v1::FinishReason reason) {
  by_code.Add(std::min(static_cast<size_t>(status.code()), by_code.size() - 1));
  const std::optional<CancelCause> cause = CauseOf(status, reason);
  if (cause.has_value()) by_cause.Add(static_cast<size_t>(*cause));
}

void CallMetrics::OnSequenceEnd(const RequestStats& stats, Seconds arrival, Seconds first_token,
                                Seconds when) {
  const bool started = stats.first_scheduled > 0;
  const Seconds scheduled = started ? std::clamp(stats.first_scheduled, arrival, when) : when;
  queue.Observe(scheduled - arrival);
  end_to_end.Observe(when - arrival);
  if (!started) return;
  const Seconds prefilled = std::clamp(first_token, scheduled, when);
  prefill.Observe(prefilled - scheduled);
  if (first_token <= when) decode.Observe(when - prefilled);
  prompt_tokens.Observe(static_cast<double>(stats.prompt_tokens));
  generation_tokens.Observe(static_cast<double>(stats.completion_tokens));
  if (stats.acp.pages_allocated > 0) {
    kept_share.Observe(static_cast<double>(stats.acp.live_pages()) /
                       static_cast<double>(stats.acp.pages_allocated));
  }
}

}  // namespace fox
