// CallMetrics: figures that calls report to monitoring, at any endpoint: times in buckets, ends by
// code and cause. It knows no exposition format.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "engine/request/request.h"
#include "fox/v1/inference.pb.h"
#include "kernels/core/check.h"

namespace fox {

// Counts values by bucket, and sums them up. Recording is two relaxed additions, cheap enough for
// every token; reading may be slow. Methods may be called from any thread. A reading may lack
// values that other threads are just adding.
class Histogram {
 public:
  static constexpr size_t kMaxBounds = 31;

  // `bounds`: the inclusive ends of the buckets, ascending, at most kMaxBounds; one more bucket
  // takes the rest. `unit`: the sum is kept in multiples of it.
  Histogram(std::vector<double> bounds, double unit) : bounds_(std::move(bounds)), unit_(unit) {
    FOX_CHECK(bounds_.size() <= kMaxBounds && std::is_sorted(bounds_.begin(), bounds_.end()));
  }

  void Observe(double value) {
    const auto bucket = std::lower_bound(bounds_.begin(), bounds_.end(), value) - bounds_.begin();
    counts_[static_cast<size_t>(bucket)].fetch_add(1, std::memory_order_relaxed);
    sum_.fetch_add(std::llround(value / unit_), std::memory_order_relaxed);
  }

  const std::vector<double>& bounds() const { return bounds_; }
  // The values in bucket i, which ends at bounds()[i]; i = bounds().size(): the rest.
  int64_t count(size_t i) const { return counts_[i].load(std::memory_order_relaxed); }
  double sum() const { return static_cast<double>(sum_.load(std::memory_order_relaxed)) * unit_; }

 private:
  const std::vector<double> bounds_;
  const double unit_;
  std::array<std::atomic<int64_t>, kMaxBounds + 1> counts_{};
  std::atomic<int64_t> sum_{0};
};

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
  // Records `tokens` more at `when`.
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
