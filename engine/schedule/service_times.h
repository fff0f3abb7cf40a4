// ServiceTimes: what work costs here and now, measured from the steps themselves, and what follows:
// a step's time, a request's, and the wait in a queue. Read scheduler.h next.
#pragma once

#include <algorithm>
#include <cstdint>

#include "engine/request/request.h"

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
  // A step that fed `prefill` tokens of prompts and `decodes` single ones took that long.
  void RecordStep(int64_t prefill, int64_t decodes, Seconds seconds);
  // A request ended by itself, that long after its start.
  void RecordEnd(int64_t generated, int64_t max_tokens, Seconds seconds);
  // One paused with so many tokens unread.
  void RecordPause(int64_t unread);

  // Whether enough was measured to refuse a request by it.
  bool known() const { return steps_ >= kFewSteps; }
  // How many tokens of prompts fit into a step of that many seconds beside `decodes`, at least a
  // page; a page as long as nothing was measured.
  int64_t PrefillTokens(Seconds seconds, int64_t decodes) const;
  // Expected tokens of requests that may generate `max_tokens` together.
  double ExpectedTokens(int64_t max_tokens, int64_t requests = 1) const {
    return std::min(length_share_ * static_cast<double>(max_tokens),
                    static_cast<double>(requests) * most_tokens_);
  }
  // What so many tokens add to steps; 0 as long as nothing was measured.
  Seconds Prefill(int64_t tokens) const { return static_cast<double>(tokens) * prefill_; }
  Seconds Decode(int64_t tokens) const { return static_cast<double>(tokens) * decode_; }
  // From the start of a request to its last token, beside what runs now.
  Seconds Service(int64_t prompt_tokens, int64_t max_tokens) const;
  Seconds mean_service() const { return mean_service_; }
  // Until a request starts that comes behind `ahead`, beside `running`, over so many slots.
  Seconds Wait(const Work& running, const Work& ahead, int64_t slots) const;

 private:
  static constexpr int64_t kFewSteps = 8;

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
