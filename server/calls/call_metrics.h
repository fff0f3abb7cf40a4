// CallMetrics: what generations report to monitoring, whatever endpoint they
// came through: times in buckets, ends by code and cause. No exposition format in it.
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

namespace fox {

// How often a value fell into which bucket, and the sum of all. Recording is two relaxed additions,
// cheap enough for every token; reading may be slow. Methods may be called from any thread. What is
// read while others record may lack what they have just added.
class Histogram {
 public:
  static constexpr size_t kMostBounds = 31;

  // `bounds`: where buckets end, inclusive, ascending, at most kMostBounds; one more takes the
  // rest. `unit`: the sum is kept in multiples of it.
  Histogram(std::vector<double> bounds, double unit) : bounds_(std::move(bounds)), unit_(unit) {}

  void Observe(double value) {
    const auto bucket = std::lower_bound(bounds_.begin(), bounds_.end(), value) - bounds_.begin();
    counts_[static_cast<size_t>(bucket)].fetch_add(1, std::memory_order_relaxed);
    sum_.fetch_add(std::llround(value / unit_), std::memory_order_relaxed);
  }

  const std::vector<double>& bounds() const { return bounds_; }
  // In the bucket that ends at bounds()[i], and in no earlier one; bounds().size(): the rest.
  int64_t count(size_t i) const { return counts_[i].load(std::memory_order_relaxed); }
  double sum() const { return static_cast<double>(sum_.load(std::memory_order_relaxed)) * unit_; }

 private:
  const std::vector<double> bounds_;
  const double unit_;
  std::array<std::atomic<int64_t>, kMostBounds + 1> counts_{};
  std::atomic<int64_t> sum_{0};
};

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
