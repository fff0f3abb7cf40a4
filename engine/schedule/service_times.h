// ServiceTimes: what work costs here and now, measured from the steps themselves, and what follows:
// a step's time, a request's, and the wait in a queue. Read scheduler.h next.
#pragma once

#include <algorithm>
#include <cstdint>

#include "engine/request/request.h"
#include "kernels/paging/paged_kv.h"

namespace fox {

// Work to do: tokens to prefill, tokens to decode, of so many requests.
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
  // Each part is corrected in proportion to its share of the expected time: what a step does not
  // contain is left as it was, and steps of one mixture are told right whatever the split.
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
    mean_service_ += 0.05 * (std::max(seconds, 0.0) - mean_service_);
    RecordPause(generated);
    if (max_tokens <= 0) return;
    const double share = static_cast<double>(generated) / static_cast<double>(max_tokens);
    length_share_ += 0.05 * (std::clamp(share, 0.0, 1.0) - length_share_);
  }
  void RecordPause(int64_t unread) {
    const auto tokens = static_cast<double>(unread);
    most_tokens_ = std::max(tokens, most_tokens_ + 0.05 * (tokens - most_tokens_));
  }

  // Whether enough was measured to refuse a request by it.
  bool known() const { return steps_ >= kFewSteps; }
  // That fit into a step of that many seconds beside `decodes`, at least a page.
  int64_t PrefillTokens(Seconds seconds, int64_t decodes) const {
    if (prefill_ == 0) return kPageTokens;
    const double tokens = (seconds - static_cast<double>(decodes) * decode_) / prefill_;
    const double most = 1e9;
    return std::max<int64_t>(kPageTokens, static_cast<int64_t>(std::clamp(tokens, 0.0, most)));
  }
  // Expected tokens of requests that may generate `max_tokens` together.
  double ExpectedTokens(int64_t max_tokens, int64_t requests = 1) const {
    return std::min(length_share_ * static_cast<double>(max_tokens),
                    static_cast<double>(requests) * most_tokens_);
  }
  // What so many tokens add to steps; 0 as long as nothing was measured.
  Seconds Prefill(int64_t tokens) const { return static_cast<double>(tokens) * prefill_; }
  Seconds Decode(int64_t tokens) const { return static_cast<double>(tokens) * decode_; }
  // From the start of a request to its last token, beside what runs now.
  Seconds Service(int64_t prompt_tokens, int64_t max_tokens) const {
    return Prefill(prompt_tokens) + ExpectedTokens(max_tokens) * step_;
  }
  Seconds mean_service() const { return mean_service_; }
  // Until a request starts that comes behind `ahead`, beside `running`: all that is there, less
  // what is still running then, half of the work of its neighbours if they came one after another.
  Seconds Wait(const Work& running, const Work& ahead, int64_t slots) const {
    Work all = ahead;
    all.Add(running);
    if (all.requests < static_cast<double>(slots)) {  // it shares the steps of those that run
      return ahead.prefill_tokens * prefill_;
    }
    return Cost(all) * (1 - 0.5 * static_cast<double>(slots - 1) / all.requests);
  }

 private:
  static constexpr int64_t kFewSteps = 8;
  static constexpr double kGain = 0.2;     // of the newest step
  static constexpr double kOutlier = 4.0;  // one step counts for at most so many times the expected

  Seconds Cost(const Work& work) const {
    return work.prefill_tokens * prefill_ + work.decode_tokens * decode_;
  }

  int64_t steps_ = 0;
  Seconds prefill_ = 0;  // a token
  Seconds decode_ = 0;   // a token of one of the sequences that decode together
  Seconds step_ = 0;     // of steps that decode, whatever else they do
  double length_share_ = 1;
  // Lately, of one request: what it may ask for must not keep others out. At first as many as a
  // reader that reads nothing gets.
  double most_tokens_ = 64;
  Seconds mean_service_ = 0;
};

}  // namespace fox
