// ServiceTimes: how long work takes on this machine, learnt from its steps, and the estimates that
// follow: tokens that fit into a step, a request's service time, the wait in a queue. Read
// scheduler.h next.
#pragma once

#include <algorithm>
#include <cstdint>

#include "engine/request/request.h"
#include "kernels/paging/paged_kv.h"

namespace fox {

// Work to do: tokens to prefill and to decode, and the number of requests that they belong to.
struct Work {
  double prefill_tokens = 0, decode_tokens = 0, requests = 0;

  void Add(const Work& other, double share = 1) {
    prefill_tokens += share * other.prefill_tokens;
    decode_tokens += share * other.decode_tokens;
    requests += share * other.requests;
  }
};

class ServiceTimes {
 public:
  // Splits the error between the costs of prefill and decode by their shares of the expected time.
  // So a step without prefill leaves the cost of prefill as it is, and steps with a constant
  // mixture are predicted right whatever the split.
  void RecordStep(int64_t prefill, int64_t decodes, Seconds seconds) {
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
  void RecordEnd(int64_t generated, int64_t max_tokens, Seconds seconds) {
    mean_service_ += kRequestGain * (std::max(seconds, 0.0) - mean_service_);
    RecordPause(generated);
    if (max_tokens <= 0) return;
    const double share = static_cast<double>(generated) / static_cast<double>(max_tokens);
    length_share_ += kRequestGain * (std::clamp(share, 0.0, 1.0) - length_share_);
  }
  // A sequence paused with `unread` tokens that its reader has not taken.
  void RecordPause(int64_t unread) {
    const auto tokens = static_cast<double>(unread);
    recent_tokens_ = std::max(tokens, recent_tokens_ + kRequestGain * (tokens - recent_tokens_));
  }

  // True if enough steps were measured to refuse requests by the estimates.
  bool known() const { return steps_ >= kMinSteps; }
  // Tokens of prompts that fit into a step of `seconds` beside `decodes` decoded tokens; at least a
  // page.
  int64_t PrefillTokens(Seconds seconds, int64_t decodes) const {
    if (prefill_ == 0) return kPageTokens;
    const double tokens = (seconds - static_cast<double>(decodes) * decode_) / prefill_;
    const double max = 1e9;
    return std::max<int64_t>(kPageTokens, static_cast<int64_t>(std::clamp(tokens, 0.0, max)));
  }
  // Expected answer tokens of `requests` requests whose max_tokens add up to `max_tokens`.
  double ExpectedTokens(int64_t max_tokens, int64_t requests = 1) const {
    return std::min(length_share_ * static_cast<double>(max_tokens),
                    static_cast<double>(requests) * recent_tokens_);
  }
  // Time that `tokens` tokens of a prompt add to steps; 0 until a step was measured.
  Seconds Prefill(int64_t tokens) const { return static_cast<double>(tokens) * prefill_; }
  // Time from a request's start to its last token, beside the present load.
  Seconds Service(int64_t prompt_tokens, int64_t max_tokens) const {
    return Prefill(prompt_tokens) + ExpectedTokens(max_tokens) * step_;
  }
  Seconds mean_service() const { return mean_service_; }
  // Expected wait of a request queued behind `ahead`: the time of all work, less half of the work
  // that the other slots will still be running at that time.
  Seconds Wait(const Work& running, const Work& ahead, int64_t slots) const {
    Work all = ahead;
    all.Add(running);
    if (all.requests < static_cast<double>(slots)) {  // there is a slot for it
      return ahead.prefill_tokens * prefill_;
    }
    return Cost(all) * (1 - 0.5 * static_cast<double>(slots - 1) / all.requests);
  }

 private:
  static constexpr int64_t kMinSteps = 8;
  static constexpr double kGain = 0.2;          // weight of the newest step
  static constexpr double kRequestGain = 0.05;  // weight of the newest request
  static constexpr double kOutlier = 4.0;  // cap on a step's time, as a multiple of the expected

  Seconds Cost(const Work& work) const {
    return work.prefill_tokens * prefill_ + work.decode_tokens * decode_;
  }

  int64_t steps_ = 0;
  Seconds prefill_ = 0;      // cost of a prompt token
  Seconds decode_ = 0;       // cost of a decoded token, of a sequence among others
  Seconds step_ = 0;         // mean time of a step with decodes
  double length_share_ = 1;  // answer tokens / max_tokens, mean
  // Recent upper estimate of a request's answer tokens. It stands in for max_tokens, which is often
  // set too high. At first the window of a reader that reads nothing.
  double recent_tokens_ = 64;
  Seconds mean_service_ = 0;
};

}  // namespace fox
