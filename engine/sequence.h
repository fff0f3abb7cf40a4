// Sequence: one request on its way through the engine. Invariant: tokens[0, computed) are in the
// slot's cache; the rest is to be fed; sampling needs all of them fed. A preempted sequence is
// one with computed == 0 and no slot. Read scheduler.h next.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/engine.h"
#include "engine/sampler.h"
#include "engine/stop_condition.h"

namespace fox {

struct Sequence {
  // `arrival` counts submitted requests. Takes the request's prompt into `tokens`.
  Sequence(Request submitted, const EngineOptions& options, int64_t max_model_len,
           int64_t arrival_order, Seconds now);

  int64_t generated() const { return static_cast<int64_t>(tokens.size()) - prompt_tokens; }
  int64_t remaining() const { return static_cast<int64_t>(tokens.size()) - computed; }
  bool paused() const { return request.window > 0 && generated() - acknowledged >= request.window; }
  // Whether a plan with all remaining tokens ends in sampling.
  bool samples() const { return max_tokens > 0; }

  // How many rows of logits a chunk of `count` tokens wants, and which (within the chunk).
  int64_t LogitRows(int64_t count) const;
  std::vector<int32_t> ListLogitRows(int64_t count) const;

  void Append(const SampledToken& token);
  // The slot is given up: its counters move into stats.acp.
  void LeaveSlot();
  // stats with the counters of the current slot added.
  RequestStats FinalStats(Seconds now) const;

  Request request;              // the prompt is moved out
  std::vector<int32_t> tokens;  // prompt, then generated
  int64_t prompt_tokens;
  int64_t max_tokens;    // clamped to the context
  double log_tolerance;  // effective: the stricter of engine and request
  StopCondition stop;
  TokenCounts counts;  // empty unless a penalty needs it
  int64_t priority;    // 0 for all when first come, first served
  int64_t arrival;

  bool started = false;  // was in a plan
  int32_t slot = -1;     // -1: waiting
  int64_t computed = 0;
  SlotStats slot_stats;  // of `slot`, as of its last run
  int64_t acknowledged = 0;
  int64_t prompt_logprobs_done = 0;  // prompt rows whose log-probabilities were delivered
  Seconds paused_since = 0;          // valid while paused()
  RequestStats stats;

 private:
  int64_t FirstPromptRow() const;
  bool wants_prompt_logprobs() const { return request.sampling.prompt_logprobs >= 0; }
};

// Scheduling order: lower priority value, then earlier arrival.
inline bool RunsBefore(const Sequence& a, const Sequence& b) {
  return a.priority != b.priority ? a.priority < b.priority : a.arrival < b.arrival;
}

}  // namespace fox
