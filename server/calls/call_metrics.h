// Figures of calls at any endpoint. CallMetrics: for monitoring, times in buckets, ends by code and
// cause. PromptTotals: for the log.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "engine/request/request.h"
#include "fox/v1/inference.pb.h"
#include "prometheus/histogram.h"
#include "server/calls/access/call_info.h"

namespace fox {

// The cause that ended a call before its answer was complete.
enum class CancelCause : uint8_t { kClient, kDeadline, kAbort, kStall, kDrain };

// Counts by an enumeration that begins at 0.
template <size_t kSize>
class Counts {
 public:
  void Add(size_t i) { counts_[i].fetch_add(1, std::memory_order_relaxed); }
  int64_t operator[](size_t i) const { return counts_[i].load(std::memory_order_relaxed); }
  static constexpr size_t size() { return kSize; }

 private:
  std::array<std::atomic<int64_t>, kSize> counts_{};
};

// Methods may be called from any thread. Times are in seconds, on the server's clock.
class CallMetrics {
 public:
  CallMetrics();

  // A call has ended with `status`; `reason`: how its last sequence ended, if well.
  void OnCallEnd(const absl::Status& status, v1::FinishReason reason);
  // A sequence that was admitted has ended, well or not; `when`: its last output was delivered.
  void OnSequenceEnd(const RequestStats& stats, Seconds arrival, Seconds first_token, Seconds when);
  // An audit is over; `beyond`: its largest total variation `max_tv` exceeds the limit.
  void OnAudit(bool skipped, bool beyond, double max_tv);
  void OnSequenceEnd(v1::FinishReason reason) { by_reason.Add(static_cast<size_t>(reason)); }

  prometheus::Histogram time_to_first_token, inter_token, queue, prefill, decode, end_to_end;
  prometheus::Histogram prompt_tokens, generation_tokens;  // of a sequence
  prometheus::Histogram kept_share;    // pages that a sequence held at its end, of those it took
  prometheus::Histogram audit_max_tv;  // of the audits that were not skipped
  std::atomic<int64_t> audits_skipped{0}, audits_beyond{0};
  Counts<17> by_code;                            // calls, by absl::StatusCode
  Counts<v1::FinishReason_ARRAYSIZE> by_reason;  // sequences, by FinishReason
  Counts<5> by_cause;                            // calls, by CancelCause
};

// The figures of one prompt's sequences, for its line in the log.
struct PromptTotals {
  // Adds a sequence that has ended. `tokens`: of its answer; `first`: when the first one was known.
  void AddSequence(const RequestStats& stats, int64_t tokens, Seconds first);

  int64_t sequences = 0, prompt_tokens = 0;
  int64_t completion_tokens = 0, preemptions = 0, peak_pages = 0, pages_evicted = 0;
  Seconds scheduled = kNever, first_token = kNever;
  v1::FinishReason reason = v1::FINISH_REASON_UNSPECIFIED;  // of the last sequence
};

// Logs "request finished": a prompt of `call` has ended at `end`, on the engine's clock.
void LogPromptEnd(const CallInfo& call, const std::string& request_id, const absl::Status& failure,
                  const PromptTotals& totals, Seconds end);

}  // namespace fox
