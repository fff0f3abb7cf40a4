// Load: an engine under scripted arrivals on a virtual clock. Its executor computes nothing: a step
// takes as long as its tokens cost, and a sequence keeps as many pages as a script says. All
// outputs are recorded with their times.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "kernels/core/check.h"
#include "kernels/paging/paged_kv.h"

namespace fox::sim {

struct LoadCosts {
  Seconds step = 0.0012, prefill_token = 0.0002, decode_token = 0.00045;
  Seconds context_token = 0;        // of a decode, for each token before it
  int64_t kept_tokens = INT64_MAX;  // of a sequence; the pages before them are evicted
  double dense_share = 0;           // of all heads: they keep everything; the mean of all requests
  double spread = 0;                // of that share among requests: +- so much of it, evenly
};

inline ExecutorLimits LoadLimits() {
  ExecutorLimits limits;
  limits.num_pages = 100000;
  limits.lists_per_slot = 4;
  limits.max_num_seqs = 16;
  limits.num_slots = 48;
  limits.max_model_len = 16384;
  limits.max_num_batched_tokens = 512;
  limits.max_logit_rows = 128;
  limits.vocab_size = 8;
  return limits;
}

class ScriptedExecutor : public StepExecutor {
 public:
  ScriptedExecutor(const ExecutorLimits& limits, const LoadCosts& costs)
      : limits_(limits),
        costs_(costs),
        dense_(static_cast<size_t>(limits.slots()), 0),
        row_(static_cast<size_t>(limits.max_num_batched_tokens * limits.vocab_size), 0.0f),
        live_(static_cast<size_t>(limits.slots()), 0) {}

  const ExecutorLimits& limits() const override { return limits_; }
  absl::Status Submit(const StepPlan& plan) override {
    plans_.push_back(plan);
    return absl::OkStatus();
  }
  absl::StatusOr<StepResult> Collect() override {
    const StepPlan plan = std::move(plans_.front());
    plans_.pop_front();
    for (const int32_t slot : plan.release_slots) live_[static_cast<size_t>(slot)] = 0;
    if (!plan.sequences.empty()) seconds_ += costs_.step;
    int64_t taken = 0;  // all before any is evicted
    for (const PlannedSequence& planned : plan.sequences) {
      const int64_t end = planned.position + static_cast<int64_t>(planned.token_ids.size());
      taken += limits_.lists_per_slot * (PagesFor(end) - PagesFor(planned.position));
    }
    FOX_CHECK(taken <= FreePages());
    StepResult result;
    for (const PlannedSequence& planned : plan.sequences) {
      const auto count = static_cast<int64_t>(planned.token_ids.size());
      seconds_ +=
          static_cast<double>(count) * (count > 1 ? costs_.prefill_token : costs_.decode_token);
      if (count == 1) seconds_ += static_cast<double>(planned.position) * costs_.context_token;
      const int64_t end = planned.position + count;
      int64_t& live = live_[static_cast<size_t>(planned.slot)];
      live = PagesKept(planned, end);
      result.stats.emplace_back().pages_allocated = live;
      result.sampled.emplace_back(SampledToken{});
      result.logits.push_back(planned.logit_rows.empty() ? nullptr : row_.data());
    }
    result.free_pages = FreePages();
    return result;
  }
  Seconds TakeSeconds() { return std::exchange(seconds_, 0.0); }

 private:
  int64_t FreePages() const {
    return std::accumulate(live_.begin(), live_.end(), limits_.num_pages, std::minus<>());
  }
  // Some heads keep all pages, the others a window.
  int64_t PagesKept(const PlannedSequence& planned, int64_t tokens) {
    double& dense = dense_[static_cast<size_t>(planned.slot)];
    if (planned.position == 0) {
      const double unit = static_cast<double>(planned.id * 0x9e3779b97f4a7c15 >> 11) * 0x1.0p-53;
      dense = costs_.dense_share * (1 + costs_.spread * (2 * unit - 1));
    }
    const double all = PagesFor(tokens);
    const double window = PagesFor(std::min(tokens, costs_.kept_tokens));
    return static_cast<int64_t>(static_cast<double>(limits_.lists_per_slot) *
                                (dense * all + (1 - dense) * window));
  }

  const ExecutorLimits limits_;
  const LoadCosts costs_;
  std::vector<double> dense_;  // share of the slot's sequence
  std::vector<float> row_;
  std::vector<int64_t> live_;
  std::deque<StepPlan> plans_;  // in flight
  Seconds seconds_ = 0;
};

struct LoadRequest {
  Seconds sent = 0, first_token = kNever, end = kNever;
  uint64_t client = 0;
  int64_t prompt_tokens = 0, tokens = 0;
  bool admitted = false;
  double estimate = 0;  // Engine::QueueSeconds when it was sent
  Finish finish;
  absl::Status refusal;

  bool ok() const { return admitted && end < kNever && finish.status.ok(); }
};

class Load {
 public:
  explicit Load(const EngineOptions& options = {}, const ExecutorLimits& limits = LoadLimits(),
                const LoadCosts& costs = {})
      : executor_(limits, costs), engine_(std::make_unique<Engine>(options, executor_)) {}

  static Request MakeRequest(int64_t prompt, int32_t tokens, uint64_t client = 0) {
    Request request;
    request.prompt.assign(static_cast<size_t>(prompt), 1);
    request.stop.max_tokens = tokens;
    request.stop.ignore_eos = true;
    request.sampling.temperature = 0;
    request.client = client;
    return request;
  }

  // Calls `then` at `time`.
  void At(Seconds time, std::function<void()> then) {
    events_.emplace(std::max(time, now_), std::move(then));
  }
  // Sends now. `on_end` is called when the request has ended or was refused.
  RequestId Send(Request request, std::function<void(const LoadRequest&)> on_end = nullptr) {
    const RequestId id = next_id_++;
    request.id = id;
    LoadRequest& sent = requests_[id];
    sent.sent = now_;
    sent.client = request.client;
    sent.prompt_tokens = static_cast<int64_t>(request.prompt.size());
    sent.estimate = engine_->QueueSeconds();
    sent.refusal = engine_->Submit(std::move(request), now_);
    sent.admitted = sent.refusal.ok();
    if (on_end && sent.admitted) {
      on_end_[id] = std::move(on_end);
    } else if (on_end) {
      on_end(sent);
    }
    return id;
  }
  void Run(Seconds until) {
    while (now_ < until) {
      while (!events_.empty() && events_.begin()->first <= now_) {
        const auto then = std::move(events_.begin()->second);
        events_.erase(events_.begin());
        then();
      }
      if (engine_->HasWork() || engine_->NextDeadline() <= now_) {
        Step();
        continue;
      }
      Seconds next = kNever;
      if (!events_.empty()) next = events_.begin()->first;
      now_ = std::min({next, engine_->NextDeadline(), until});
    }
  }

  Seconds now() const { return now_; }
  Engine& engine() { return *engine_; }
  const EngineStats& engine_stats() const { return engine_->stats(); }
  const std::map<RequestId, LoadRequest>& requests() const { return requests_; }
  // Tokens of requests that were sent and ended well between these times.
  int64_t GoodTokens(Seconds from, Seconds to) const {
    int64_t tokens = 0;
    for (const auto& [id, request] : requests_) {
      if (request.ok() && request.end >= from && request.end < to) tokens += request.tokens;
    }
    return tokens;
  }
  std::function<void(RequestId, int64_t)> on_tokens;  // delivered to a client

 private:
  void Step() {
    std::vector<RequestOutput> outputs = engine_->Step(now_);
    now_ += executor_.TakeSeconds();
    for (RequestOutput& output : outputs) {
      LoadRequest& request = requests_[output.id];
      if (!output.tokens.empty()) {
        request.first_token = std::min(request.first_token, now_);
        request.tokens += static_cast<int64_t>(output.tokens.size());
        if (on_tokens) on_tokens(output.id, static_cast<int64_t>(output.tokens.size()));
      }
      if (!output.finish) continue;
      request.end = now_;
      request.finish = *output.finish;
      if (const auto found = on_end_.find(output.id); found != on_end_.end()) {
        const auto on_end = std::move(found->second);
        on_end_.erase(found);
        on_end(request);
      }
    }
  }

  ScriptedExecutor executor_;
  std::unique_ptr<Engine> engine_;
  Seconds now_ = 0;
  RequestId next_id_ = 1;
  std::multimap<Seconds, std::function<void()>> events_;
  std::map<RequestId, LoadRequest> requests_;
  std::map<RequestId, std::function<void(const LoadRequest&)>> on_end_;
};

}  // namespace fox::sim
