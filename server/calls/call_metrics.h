// CallMetrics: what generations report to monitoring, whatever endpoint they
// came through: times in buckets, ends by code and cause. No exposition format in it.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "engine/request/request.h"
#include "fox/v1/inference.pb.h"
#include "server/calls/histogram.h"

namespace fox {

// What ended a call before its answer was complete.
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
  void OnSequenceEnd(v1::FinishReason reason) { by_reason.Add(static_cast<size_t>(reason)); }

  Histogram time_to_first_token, inter_token, queue, prefill, decode, end_to_end;
  Histogram prompt_tokens, generation_tokens;  // of a sequence
  Histogram kept_share;  // pages that a sequence held at its end, of those it took
  Counts<17> by_code;    // calls, by absl::StatusCode
  Counts<v1::FinishReason_ARRAYSIZE> by_reason;  // sequences, by FinishReason
  Counts<5> by_cause;                            // calls, by CancelCause
};

// When the tokens of one sequence were known; one thread at a time.
class TokenTimes {
 public:
  // `tokens` more at `when`; none is no news.
  void Add(size_t tokens, Seconds arrival, Seconds when, CallMetrics* metrics) {
    if (tokens == 0) return;
    if (last_ == kNever) {
      first_ = when;
      metrics->time_to_first_token.Observe(when - arrival);
    } else {
      for (size_t i = 0; i < tokens; ++i) {
        metrics->inter_token.Observe((when - last_) / static_cast<double>(tokens));
      }
    }
    last_ = when;
  }
  Seconds first() const { return first_; }  // kNever: none yet

 private:
  Seconds first_ = kNever, last_ = kNever;
};

}  // namespace fox
