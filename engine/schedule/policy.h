// Policy: the choices between sequences that need nothing but the sequences, and the constants of
// all choices. A choice that needs more data stands beside its data: turns and displacement in
// waiting_queue.cc, masks in mask_shares.h, the snapshot to drop in PrefixCache::Victim, rescue and
// the parts of a step in scheduler.cc (RescueOne, PlanPrefills), refusals and the reader to abort
// in engine_requests.cc (CheckWait, LimitPaused). The table in engine/README.md has all of them.
// Read scheduler.h next.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "engine/schedule/sequence.h"
#include "engine/schedule/service_times.h"

namespace fox {

// Decodes that count for ExecutorLimits::prefill_tokens_per_decode even if a step has fewer,
// because still shorter chunks would cost more than they spare the decodes. With more decodes a
// step's prompt tokens grow in proportion, as far as its budget allows: the time that prompts take
// is then spread over the tokens of all sequences that decode.
inline constexpr int64_t kLeastDecodes = 11;
// Seconds without a token after which a sequence is rescued: it goes before all others until it has
// a token. One sequence is rescued at a time, and one in this many seconds, because in an overload
// all sequences are late.
inline constexpr Seconds kStarvation = 5.0;
// Seconds that a client without a running slot waits until it is due one, and the least time that a
// sequence keeps its slot. Long beside a step, so that changes of slots cost little.
inline constexpr Seconds kSlotTurn = 0.5;
// A decoded token costs as much as this many tokens of a prompt: about the ratio of their times.
inline constexpr int64_t kDecodeCost = 4;
// Cap on max_tokens in the cost of a request, because clients often set it far too high.
inline constexpr int64_t kMaxChargedTokens = 512;
// Costs are rounded down to multiples of this. Requests of equal cost run in order of arrival,
// which keeps waits predictable.
inline constexpr int64_t kCostGranularity = 1024;
// Beside others, sequences with slow readers get 1 / kSlowShare of the running slots and run in one
// of kSlowShare steps: their contexts may be long, and no client waits for their tokens. With
// either limit alone, 20 such readers take 26% or 42% of the others' throughput; with both, less
// than 17% (engine_load_test).
inline constexpr int64_t kSlowShare = 6;
// Requests without room that a step passes over. Bounds the time that planning takes.
inline constexpr int kMaxPassedOver = 16;
// Steps of masks (GrammarMatcher::steps) in one plan, where sequences of several clients run. A
// client may use the larger of two amounts: an even share of kMaskSteps, about 2 ms of a thread, or
// kMaskStepsPerSequence for each of its sequences, which is enough for most schemas.
inline constexpr int64_t kMaskSteps = 400'000, kMaskStepsPerSequence = 16'000;
// A client is charged one token of a prompt for this many steps of masks, which makes about 0.5 ms
// of masks as expensive as a decoded token.
inline constexpr int64_t kMaskStepsPerToken = 25'000;
// A snapshot at the end of a prompt may cost the prompt an extra step only if it saves at least
// this many tokens.
inline constexpr int64_t kMinSnapshotSaving = 512;
// Share of a request's expected service time that must fit before its deadline at the start. Below
// 1, because the expectation may be too high and the request may end in time all the same.
inline constexpr double kDeadlineShare = 0.7;
// A full server assumes that a newcomer takes as long as this many mean service times.
inline constexpr double kAssumedServices = 2.0;

// Cost of a request, in tokens of a prompt.
inline int64_t Cost(int64_t tokens, int64_t max_tokens) {
  const int64_t cost = tokens + kDecodeCost * std::min(max_tokens, kMaxChargedTokens);
  return cost / kCostGranularity * kCostGranularity;
}

// Least service time that a full server assumes of a newcomer with `left` seconds to its deadline.
// Without it a full queue would take nothing but the shortest requests.
inline Seconds AssumedService(Seconds mean_service, Seconds left) {
  return std::min(kAssumedServices * mean_service, left / 2);
}

// Order of one client's waiting requests: by priority, then by place.
inline bool ComesBefore(const Sequence& a, const Sequence& b) {
  return a.priority != b.priority ? a.priority < b.priority : a.place < b.place;
}
// Order of running sequences: pages and prefill are given in this order, and the last sequence is
// preempted first.
inline bool RunsBefore(const Sequence& a, const Sequence& b) {
  return a.rescued != b.rescued ? a.rescued : ComesBefore(a, b);
}
// True if `a` has been without a token for longer than `b`.
inline bool IsLongerWithoutToken(const Sequence& a, const Sequence& b) {
  if (a.without_token_since != b.without_token_since) {
    return a.without_token_since < b.without_token_since;
  }
  return a.arrival < b.arrival;
}

struct ComesEarlier {
  bool operator()(const Sequence* a, const Sequence* b) const { return ComesBefore(*a, *b); }
};
struct RunsEarlier {
  bool operator()(const Sequence* a, const Sequence* b) const { return RunsBefore(*a, *b); }
};

// True if the sequence has a slow reader, and so gets no more than kSlowShare leaves it.
inline bool IsBestEffort(const Sequence& sequence) {
  return sequence.reads_slowly() && !sequence.rescued;
}

// Running slots of best-effort sequences where others run.
inline int64_t MaxBestEffort(int64_t max_running) {
  return std::max<int64_t>(1, max_running / kSlowShare);
}

// True if `next` may start in this step. `slow` of the `running` sequences are best effort;
// `best_effort_step`: this step runs best-effort sequences.
inline bool MayStart(const Sequence& next, int64_t running, int64_t slow, int64_t max_running,
                     bool best_effort_step) {
  if (!next.is_schedulable()) return false;
  // A sequence that was preempted with a plan in flight comes back once that plan is collected.
  if (next.slot < 0 && next.in_flight > 0) return false;
  if (!IsBestEffort(next)) return true;
  return best_effort_step && (slow == running || slow < MaxBestEffort(max_running));
}

// True if an unstarted sequence can no longer meet its deadline. A request that could not even have
// finished if it had started on arrival only has to reach its first token.
inline bool MissesDeadline(const Sequence& next, const ServiceTimes& times, Seconds now) {
  if (next.started || next.request.deadline == kNever || !times.known()) return false;
  const Seconds first = times.Prefill(next.prompt_tokens);
  const Seconds whole = times.Service(next.prompt_tokens, next.max_tokens);
  const bool could_finish = next.stats.arrival + whole <= next.request.deadline;
  return now + (could_finish ? std::max(first, kDeadlineShare * whole) : first) >
         next.request.deadline;
}

// Next holder to preempt, of sequences that have a slot and do not run: paused ones first, then the
// shortest, which is the cheapest to compute again. Null: there are no holders.
inline Sequence* PagesVictim(const std::vector<Sequence*>& holders) {
  const auto before = [](const Sequence* a, const Sequence* b) {
    if (a->state != b->state) return a->state == SequenceState::kPaused;
    return a->length() != b->length() ? a->length() < b->length() : a->place > b->place;
  };
  const auto least = std::min_element(holders.begin(), holders.end(), before);
  return least == holders.end() ? nullptr : *least;
}

// The sequence that gives its running slot up for `next`: the last in order of the client with the
// most running slots. Null: there is none. A client's first sequence keeps its slot, so that each
// client makes progress; so does a sequence that is more urgent than `next`, or has had its slot
// for less than kSlotTurn.
inline Sequence* SlotVictim(const std::set<Sequence*, RunsEarlier>& running, const Sequence& next,
                            Seconds now) {
  std::map<uint64_t, int64_t> slots;  // counted so far, by client
  int64_t most = 2;
  Sequence* last = nullptr;
  for (Sequence* sequence : running) {
    const int64_t count = ++slots[sequence->request.client];
    if (count < most || sequence->rescued || sequence->priority < next.priority) continue;
    if (now < sequence->queue().running_since + kSlotTurn) continue;
    most = count;
    last = sequence;
  }
  return last;
}

}  // namespace fox
