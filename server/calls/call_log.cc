// PromptTotals: sums, and the line's fields. See call_log.h.
#include "server/calls/call_log.h"

#include <algorithm>
#include <vector>

#include "server/process/log.h"

namespace fox {

void PromptTotals::AddSequence(const SequenceEvents& sequence, const RequestStats& stats) {
  completion_tokens += sequence.completion_tokens();
  preemptions += stats.preemptions;
  peak_pages += stats.acp.peak_pages;
  pages_evicted += stats.acp.pages_evicted;
  first_token = std::min(first_token, sequence.first_token());
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
