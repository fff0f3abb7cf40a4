// CallMetrics: bounds of the buckets, and causes of ends. PromptTotals: the line of the log. The
// bounds contain vLLM's, so that its dashboards can be fed, and finer ones, because a step of a
// small model takes a millisecond.
#include "server/calls/call_metrics.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "server/process/log.h"

namespace fox {
namespace {

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
                           1,     2.5,    5,     7.5,  10,   20,   40,   80,   160, 640,  2560}),
      inter_token({0.0005, 0.001, 0.0015, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.025,
                   0.05,   0.075, 0.1,    0.15,  0.2,   0.3,   0.4,    0.5,  0.75,
                   1,      2.5,   5,      7.5,   10,    20,    40,     80}),
      queue(RequestBounds()),
      prefill(RequestBounds()),
      decode(RequestBounds()),
      end_to_end(RequestBounds()),
      prompt_tokens(LengthBounds()),
      generation_tokens(LengthBounds()),
      kept_share({0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1}),
      audit_max_tv({1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 0.003, 0.01, 0.03, 0.1, 0.3, 1}) {}

void CallMetrics::OnAudit(bool skipped, bool beyond, double max_tv) {
  if (skipped) {
    ++audits_skipped;
  } else {
    audit_max_tv.Observe(max_tv);
  }
  if (beyond) ++audits_beyond;
}

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

void PromptTotals::AddSequence(const RequestStats& stats, int64_t tokens, Seconds first) {
  completion_tokens += tokens;
  preemptions += stats.preemptions;
  peak_pages += stats.acp.peak_pages;
  pages_evicted += stats.acp.pages_evicted;
  first_token = std::min(first_token, first);
  if (stats.first_scheduled > 0) scheduled = std::min(scheduled, stats.first_scheduled);
}

void LogPromptEnd(const CallInfo& call, const std::string& request_id, const absl::Status& failure,
                  const PromptTotals& totals, Seconds end) {
  const Seconds scheduled = std::clamp(totals.scheduled, call.arrival, end);
  const Seconds first_token = std::clamp(totals.first_token, scheduled, end);
  const double running = std::max(end - scheduled, 1e-6);
  std::vector<LogField> fields = {
      {"request_id", request_id},
      {"method", call.method},
      {"peer", call.peer},
      {"status", std::string(absl::StatusCodeToString(failure.code()))},
      {"finish_reason", failure.ok() ? v1::FinishReason_Name(totals.reason) : ""},
      {"sequences", totals.sequences},
      {"prompt_tokens", totals.prompt_tokens},
      {"completion_tokens", totals.completion_tokens},
      {"queue_s", scheduled - call.arrival},
      {"ttft_s", first_token - call.arrival},
      {"e2e_s", end - call.arrival},
      {"tokens_per_s", static_cast<double>(totals.completion_tokens) / running},
      {"preemptions", totals.preemptions},
      {"peak_pages", totals.peak_pages},
      {"pages_evicted", totals.pages_evicted}};
  call.trace.AddTo(&fields);
  Log(LogLevel::kInfo, "request finished", fields);
}

}  // namespace fox
