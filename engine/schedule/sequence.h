// Sequence: one request on its way through the engine, in parts that each have one writer.
//
// Once all plans in flight have run, the slot's cache holds the first `computed` tokens. The rest
// of length() is still to be fed, and only then can a token be sampled. Without a slot, `computed`
// is 0.
//
// The states of a sequence. "in flight": plans with the sequence, submitted and not yet collected.
//
//   state     slot  in flight  preempted  rescued  meaning
//   kNone     no    any        any        any      the scheduler does not know it
//   kWaiting  no    any        any        any      new, preempted, or lost its pages
//   kWaiting  yes   any        no         any      yielded its running slot, or read on
//   kRunning  yes   any        any        any      may be in the next plan
//   kPaused   no    any        no         no       its reader is behind, its pages lost
//   kPaused   yes   any        no         no       its reader is behind
//
// Scheduler alone writes these fields, but for `in_flight`, which Engine counts down as plans are
// collected. Check() aborts in any other state. Read scheduler.h next.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "engine/request/chunk_rule.h"
#include "engine/request/engine_options.h"
#include "engine/request/executor_limits.h"
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
  std::vector<struct Sequence*> members;  // without members that have ended
  bool started = false;                   // a member was in a plan
};

// Which tokens are known and which are computed. The last `pending` tokens are being sampled by
// plans in flight and are not known yet: they count as tokens everywhere but in `tokens` and
// generated().
struct Progress {
  int64_t generated() const { return static_cast<int64_t>(tokens.size()) - prompt_tokens; }
  int64_t length() const { return static_cast<int64_t>(tokens.size()) + pending; }
  int64_t produced() const { return generated() + pending; }
  int64_t remaining() const { return length() - computed; }
  // Part of remaining() that is fed in chunks. 0: the sequence decodes, one token a step.
  int64_t prefill_left() const {
    const int64_t left = chunks.InChunks(prompt_tokens, length()) - computed;
    return left > 1 ? left : 0;
  }
  // Generated tokens to compute again: they are decoded, but nothing is sampled.
  int64_t replays_left() const { return std::max<int64_t>(0, remaining() - prefill_left() - 1); }
  // Most and fewest tokens that one plan may feed.
  int64_t max_chunk() const { return std::max<int64_t>(1, prefill_left()); }
  int64_t min_chunk() const { return chunks.Min(max_chunk()); }
  // The longest chunk of at most `count` tokens; 0: there is none.
  int64_t ChunkWithin(int64_t count) const {
    return count >= max_chunk() ? max_chunk() : chunks.Within(computed, max_chunk(), count);
  }
  // True if there is a token to feed: a known token, or a pending one but for the last.
  bool is_schedulable() const {
    return remaining() > 0 && drafts == 0 && (pending == 0 || produced() < max_tokens);
  }
  bool samples() const { return max_tokens > 0; }
  // Tokens [computed, computed + count). kLastSampledToken stands for a pending token.
  std::vector<int32_t> NextTokens(int64_t count) const;

  std::vector<int32_t> tokens;  // prompt, then generated
  int64_t prompt_tokens = 0;
  int64_t max_tokens = 0;  // clamped to the context
  ChunkRule chunks;        // of the executor
  int64_t computed = 0;
  int64_t pending = 0;           // sampled by plans in flight
  int64_t prompt_rows_done = 0;  // prompt rows delivered, or not wanted
  int64_t drafts = 0;            // in plans in flight
};

// Written by WaitingQueue.
struct QueueEntry {
  Seconds waiting_since = 0;
  Seconds running_since = kNever;      // the last start; kNever: it never ran
  int64_t tokens = 0, max_tokens = 0;  // to compute, to generate
  int64_t charged_length = 0, charged_mask_steps = 0;
  int64_t passed_in_round = -1;
};

// Written by PrefixCache.
struct PrefixState {
  // Without a slot: the result of the last Match, which holds for this version of the cache and
  // this number of known tokens.
  int64_t version = -1, length = 0;
  int64_t found = 0;      // tokens of `snapshot`
  int32_t snapshot = -1;  // slot of the snapshot to start from; -1: none
  int64_t known = 0;      // tokens in the tree, with a snapshot or without
  bool waits = false;     // another sequence is computing a longer prefix
  // With a slot.
  int64_t last = 0;         // tokens of the last snapshot taken, or of the one it started from
  std::set<int64_t> stops;  // lengths at which other sequences need a snapshot
  bool claims = false;      // the tree says that this sequence computes its prompt
};

// The prefix of a sequence without a slot in the SnapshotStore. PrefixCache writes it.
struct StoredPrefix {
  bool looked_up = false;
  int64_t tokens = 0;      // of the stored snapshot to start from; 0: none
  int64_t read = 0;        // the number of its read; 0: it has not begun
  Seconds until = kNever;  // then the sequence waits no longer
};

// A slot, or the remains of a slot that was given up.
struct SlotState {
  int32_t slot = -1;  // -1: none
  // Plans in flight with this sequence. A sequence that is preempted meanwhile starts again only
  // when all of them are collected, because the tokens that they sample belong to it.
  int in_flight = 0;
  // True if `slot` holds this sequence's penalty state. From then on the executor samples, because
  // it does not count tokens that the host has sampled.
  bool has_penalty_state = false;
  int64_t pages_lost = 0;  // pages that the sequence held when it was preempted
  // Counters of `slot`, or of a slot given up with plans in flight, as of the last plan collected.
  AcpStats slot_stats;
};

// The table above says what goes with each state.
enum class SequenceState : uint8_t {
  kNone,
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

  // Aborts if the fields contradict each other or the table at the top of this file.
  void Check() const;
  // True if rows of the prompt are wanted, for log-probabilities or as they are.
  bool wants_prompt_rows() const {
    return request.sampling.prompt_logprobs >= 0 || request.prompt_rows != nullptr;
  }
  // Rows of the prompt among the next `count` tokens that are still to be delivered.
  int64_t NumPromptRows(int64_t count) const;
  // Rows of logits that the next `count` tokens need, without rows that the executor scores.
  int64_t NumLogitRows(int64_t count, const ExecutorLimits& limits) const;
  // The next `count` tokens as a plan has them.
  PlannedSequence Feed(int64_t count, const ExecutorLimits& limits) const;
  // Up to `max_drafts` drafts after the token of `fed`, the sequence's last token in its plan. They
  // are looked up in the last `window` tokens.
  std::vector<int32_t> Drafts(const PlannedSequence& fed, const Speculation& how,
                              int64_t max_drafts, int64_t window) const;
  // A draft has been computed. True if it was right: the sequence has that token at that position.
  bool TakeDraft(const PlannedSequence& draft);
  void Append(const SampledToken& token);
  // The finish that the grammar demands: an error, or no token may follow. None: the answer goes
  // on.
  std::optional<Finish> GrammarEnd() const;
  // The slot's counters move into stats.acp as soon as they are final.
  void ReleaseSlot();
  void OnStepCollected(const AcpStats& collected);
  // Adds the mass that the rows of a collected plan lost. Rows that were computed before, in a slot
  // that was given up, do not count again, except in a chunk with other rows. A chunk with rows of
  // the prompt and of the answer counts for both.
  void AddLostMass(const PlannedSequence& planned, const LostMass& lost);
  RequestStats FinalStats(Seconds now) const;

  Request request;       // the prompt is moved out
  double log_tolerance;  // effective: the stricter of engine and request
  StopCondition stop;
  TokenCounts counts;                       // empty unless a penalty needs it
  int64_t mask_steps = 0;                   // estimate for the next mask; 0: no mask
  int64_t all_mask_steps = 0;               // steps of all masks so far
  std::unique_ptr<GrammarMatcher> matcher;  // null: any answer, or it has not started
  int64_t priority;                         // 0 without priority scheduling
  const int64_t arrival;
  std::shared_ptr<SequenceGroup> group = std::make_shared<SequenceGroup>();
  ReaderWindow reader;
  DraftRecord draft_record;

  // Written by Scheduler.
  SequenceState state = SequenceState::kNone;
  int64_t place = 0;       // in the order of equals; set when it is queued and when it first starts
  bool preempted = false;  // it lost its slot to others since it last started anew
  bool rescued = false;    // it goes before all others until it has a token: kStarvation
  Seconds without_token_since = 0;  // since its last token, or since it could first have had one
  Seconds blocked_since = kNever;   // since it first found no room at its turn

  // Written by Engine.
  int64_t lost_mass_rows = 0;   // tokens whose rows are in stats.acp's prompt_lost and answer_lost
  bool started = false;         // was in a plan
  Seconds next_event = kNever;  // earliest deadline or stall
  RequestStats stats;

 private:
  friend class WaitingQueue;
  friend class PrefixCache;
  int64_t FirstPromptRow() const;
  // True if the executor scores the rows of the prompt; else it delivers them.
  bool ExecutorScores(const ExecutorLimits& limits) const;
  void CloseSlotStats();

  QueueEntry queue_;
  PrefixState prefix_;
  StoredPrefix stored_;
};

}  // namespace fox
