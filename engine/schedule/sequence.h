// Sequence: one request on its way through the engine, in parts that each have one writer.
// Invariant: the slot's cache holds the first `computed` tokens once all plans in flight have run;
// the rest of length() is to be fed; sampling needs all of it fed. Without a slot `computed` is
// what is swapped out, else 0. Read scheduler.h next.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "engine/request/engine_options.h"
#include "engine/request/reader_window.h"
#include "engine/request/request.h"
#include "engine/request/sampler.h"
#include "engine/request/speculation.h"
#include "engine/request/step_plan.h"
#include "engine/request/stop_condition.h"
#include "models/grammar/grammar.h"

namespace fox {

// Requests that were submitted together: samples of one prompt.
struct SequenceGroup {
  std::vector<struct Sequence*> members;  // that have not ended
  bool started = false;                   // one of them was in a plan
};

// How far the tokens are. `pending` tokens at the end are sampled by plans in flight and not known
// yet: they count as tokens everywhere but in `tokens` and generated().
struct Progress {
  int64_t generated() const { return static_cast<int64_t>(tokens.size()) - prompt_tokens; }
  int64_t length() const { return static_cast<int64_t>(tokens.size()) + pending; }
  int64_t produced() const { return generated() + pending; }
  int64_t remaining() const { return length() - computed; }
  // Of those, tokens that are fed in chunks; 0: one a step from here on, which is decoding.
  int64_t prefill_left() const {
    if (chunk_multiple == 1) return remaining() > 1 ? remaining() : 0;
    return prompt_tokens > 1 ? std::max<int64_t>(0, prompt_tokens - computed) : 0;
  }
  // Generated tokens that are computed again: decoded, but nothing is sampled.
  int64_t replays_left() const {
    return chunk_multiple == 1 ? 0 : std::max<int64_t>(0, remaining() - prefill_left() - 1);
  }
  // What a plan may feed at once, at most and at least.
  int64_t longest_chunk() const {
    return chunk_multiple == 1 ? remaining() : std::max<int64_t>(1, prefill_left());
  }
  int64_t least_chunk() const {
    if (chunk_multiple == 1) return 1;
    return longest_chunk() <= chunk_multiple + 1 ? longest_chunk() : chunk_multiple;
  }
  // The longest chunk of at most `count` tokens, 0: there is none. It ends with the prompt, else at
  // a multiple of chunk_multiple and with more than one token of the prompt left, since one alone
  // would be decoded. With a multiple of 1: at a page end, if there is one.
  int64_t ChunkWithin(int64_t count) const;
  // Whether a sequence that does not rest has something to feed: a known token, or a pending one
  // that is not the last.
  bool is_schedulable() const {
    return remaining() > 0 && drafts == 0 && (pending == 0 || produced() < max_tokens);
  }
  bool samples() const { return max_tokens > 0; }
  // The tokens [computed, computed + count): kLastSampledToken stands for a pending one.
  std::vector<int32_t> NextTokens(int64_t count) const;

  std::vector<int32_t> tokens;  // prompt, then generated
  int64_t prompt_tokens = 0;
  int64_t max_tokens = 0;      // clamped to the context
  int64_t chunk_multiple = 1;  // ExecutorLimits'
  int64_t computed = 0;
  int64_t pending = 0;               // sampled by plans, not yet taken
  int64_t prompt_logprobs_done = 0;  // prompt rows whose log-probabilities were delivered
  int64_t drafts = 0;                // in plans in flight
};

struct QueueEntry {
  Seconds waiting_since = 0;
  Seconds running_since = kNever;      // its last start; kNever: it never ran
  int64_t tokens = 0, max_tokens = 0;  // to compute, to generate
  int64_t charged_length = 0, charged_mask_steps = 0;
  int64_t passed_in_round = -1;
};

struct PrefixState {
  // Without a slot: what was found, and for which version (PrefixTree) and length it holds.
  int64_t version = -1, length = 0;
  int64_t found = 0;      // tokens of `snapshot`
  int32_t snapshot = -1;  // its slot; -1: none
  int64_t known = 0;      // tokens that are known to the cache, with a snapshot or without
  bool waits = false;     // for another one that computes more of it
  // With a slot.
  int64_t last = 0;         // tokens of the last snapshot that it took, or started from
  std::set<int64_t> stops;  // where others want one
  bool claims = false;      // it is known to compute its prompt
};

// What a sequence without a slot has in swap space: all that its slot had.
struct Swapped {
  int64_t offset = 0;  // there
  int64_t pages = 0;   // live; at most so many while plans with the sequence are in flight
  double max_log_evicted_mass = kNoMass;  // once no plan with the sequence is in flight
};

// A slot, or what is left of one.
struct SlotState {
  int32_t slot = -1;  // -1: none
  std::optional<Swapped> swapped;
  // Plans in flight with this sequence. One that was preempted meanwhile does not come back before
  // all are collected: what they computed is valid, and what they sampled is among its tokens.
  int in_flight = 0;
  // Whether `slot` has this sequence's penalty state. Once it is there the host samples no more,
  // because its token would not be counted.
  bool has_penalty_state = false;
  int64_t pages_lost = 0;  // how many it held when it was preempted
  AcpStats slot_stats;  // of `slot`, or of the one given up while plans were in flight, as of the
                        // last plan collected
};

// It may have a slot in any state, and has one while it runs.
enum class SequenceState : uint8_t {
  kNone,     // the scheduler does not know it
  kWaiting,  // for a running slot
  kRunning,
  kPaused,  // until its reader has caught up
};

struct Sequence : Progress, SlotState {
  // `arrival` counts submitted requests. Takes the request's prompt into `tokens`.
  Sequence(Request submitted, const EngineOptions& options, int64_t max_model_len,
           int64_t arrival_order, Seconds now);

  bool paused() const { return reader.paused(); }
  bool reads_slowly() const { return reader.is_slow(produced()); }
  void UpdatePause(Seconds now) { reader.Update(produced(), now); }
  const QueueEntry& queue() const { return queue_; }
  const PrefixState& prefix() const { return prefix_; }

  int64_t NumLogitRows(int64_t count) const;
  PlannedSequence Feed(int64_t count, bool samples_on_device) const;
  // Up to `most` drafts that may follow the token `fed`, the sequence's last in its plan.
  std::vector<int32_t> Drafts(const PlannedSequence& fed, const Speculation& how, int64_t most,
                              int64_t window) const;
  // A draft has been computed. Whether it was right: the sequence has that token there.
  bool TakeDraft(const PlannedSequence& draft);
  void Append(const SampledToken& token);
  // Of the answer's grammar: that it cannot be followed, or that nothing can follow. None: it goes
  // on.
  std::optional<Finish> GrammarEnd() const;
  // Its counters move into stats.acp as soon as they are final.
  void ReleaseSlot();
  // What is swapped goes into a slot. `unpruned`: pages that it would have without eviction.
  void SwapIn(int32_t into_slot, int64_t unpruned);
  void OnStepCollected(const AcpStats& collected);
  RequestStats FinalStats(Seconds now) const;

  Request request;       // the prompt is moved out
  double log_tolerance;  // effective: the stricter of engine and request
  StopCondition stop;
  TokenCounts counts;                       // empty unless a penalty needs it
  int64_t mask_steps = 0;                   // that its next mask is taken to need; 0: none
  int64_t all_mask_steps = 0;               // that its masks have needed
  std::unique_ptr<GrammarMatcher> matcher;  // null: any answer, or it has not started
  int64_t priority;                         // 0 for all when first come, first served
  const int64_t arrival;
  std::shared_ptr<SequenceGroup> group = std::make_shared<SequenceGroup>();
  ReaderWindow reader;
  DraftRecord draft_record;

  // The scheduler's.
  SequenceState state = SequenceState::kNone;
  int64_t place = 0;               // in the order: anew when it is queued and when it first starts
  bool preempted = false;          // waits, or runs again, because others needed its pages
  bool rescued = false;            // comes before all others until it has a token: kStarvation
  Seconds hungry_since = 0;        // when it last got a token, or could first have got one
  Seconds blocked_since = kNever;  // when it first found no room at its turn

  // The engine's.
  bool started = false;         // was in a plan
  Seconds next_event = kNever;  // when to look at it again
  RequestStats stats;

 private:
  friend class WaitingQueue;
  friend class PrefixCache;
  int64_t FirstPromptRow() const;
  void CloseSlotStats();

  QueueEntry queue_;
  PrefixState prefix_;
};

}  // namespace fox
