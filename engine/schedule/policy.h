// The policy: every choice between sequences, and every constant of one. The table in
// engine/README.md states it whole. Read scheduler.h next.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "engine/schedule/sequence.h"
#include "engine/schedule/service_times.h"

namespace fox {

// Seconds without a token after which a sequence is rescued: it goes before all others until it has
// one. One at a time, and one in so many seconds, because in an overload all are late.
inline constexpr Seconds kStarvation = 5.0;
// Seconds that a client without a running slot waits before it is due one, and that a sequence
// keeps its slot at least: long beside a step, so that changes cost little.
inline constexpr Seconds kSlotTurn = 0.5;
// Tokens of a prompt that a decoded one is charged as: about what it costs in time.
inline constexpr int64_t kDecodeCost = 4;
// Tokens of an answer that a request is taken to ask for, at most: max_tokens is often high.
inline constexpr int64_t kChargedAhead = 512;
// Tokens of a prompt by which what requests ask for must differ to change their order: others come
// as they arrived, so that a wait can be estimated.
inline constexpr int64_t kAlike = 1024;
// Beside others, sequences whose readers lag have one of so many running slots, and run in one of
// so many steps: their contexts may be long, and no client waits for their tokens.
inline constexpr int64_t kSlowShare = 6;
// Requests without room that a step passes over, which bounds the time that planning takes.
inline constexpr int kMostPassedOver = 16;
// Steps of masks (GrammarMatcher::steps) that a plan brings in beside sequences of other clients:
// so many of all clients alike, about 2 ms of a thread; or so many of each sequence, with which
// most schemas get along.
inline constexpr int64_t kMaskSteps = 400'000, kSequenceMaskSteps = 16'000;
// Steps of masks that a client is charged as a token of a prompt: a decoded one is about 0.5 ms.
inline constexpr int64_t kMaskStepsOfAToken = 25'000;
// Tokens of a prompt that a snapshot at its end must save to be worth a step more.
inline constexpr int64_t kWorthAStep = 512;

// What a request asks for, in tokens of a prompt.
inline int64_t Cost(int64_t tokens, int64_t max_tokens) {
  return (tokens + kDecodeCost * std::min(max_tokens, kChargedAhead)) / kAlike * kAlike;
}

// Of a client's requests.
inline bool ComesBefore(const Sequence& a, const Sequence& b) {
  return a.priority != b.priority ? a.priority < b.priority : a.place < b.place;
}
// Of those that run: pages and prefill are given in this order, and the last is preempted first.
inline bool RunsBefore(const Sequence& a, const Sequence& b) {
  return a.rescued != b.rescued ? a.rescued : ComesBefore(a, b);
}
inline bool IsHungrier(const Sequence& a, const Sequence& b) {
  return a.hungry_since != b.hungry_since ? a.hungry_since < b.hungry_since : a.arrival < b.arrival;
}

struct ComesEarlier {
  bool operator()(const Sequence* a, const Sequence* b) const { return ComesBefore(*a, *b); }
};
struct RunsEarlier {
  bool operator()(const Sequence* a, const Sequence* b) const { return RunsBefore(*a, *b); }
};

inline bool IsBestEffort(const Sequence& sequence) {
  return sequence.reads_slowly() && !sequence.rescued;
}

// Of best-effort sequences, beside others.
inline int64_t MostSlow(int64_t max_running) {
  return std::max<int64_t>(1, max_running / kSlowShare);
}

// Beside `running` ones, of which `slow` are best effort, in a step that may have such ones or not.
inline bool MayStart(const Sequence& next, int64_t running, int64_t slow, int64_t max_running,
                     bool best_effort_step) {
  if (!next.is_schedulable()) return false;
  // One that was preempted with a plan in flight comes back when that has been collected.
  if (next.slot < 0 && next.in_flight > 0) return false;
  if (!IsBestEffort(next)) return true;
  return best_effort_step && (slow == running || slow < MostSlow(max_running));
}

// Whether a sequence that has not started could not finish before its deadline; or, where it could
// not even if it had started at once, not begin.
inline bool MissesDeadline(const Sequence& next, const ServiceTimes& times, Seconds now) {
  if (next.started || next.request.deadline == kNever || !times.known()) return false;
  const Seconds first = times.Prefill(next.prompt_tokens);
  const Seconds whole = times.Service(next.prompt_tokens, next.max_tokens);
  const bool could_finish = next.stats.arrival + whole <= next.request.deadline;
  return now + (could_finish ? std::max(first, 0.7 * whole) : first) > next.request.deadline;
}

// Of those that have pages and do not run, the one that gives them up: a paused one before one that
// waits, then the one that is cheapest to compute again. Null: there is none.
inline Sequence* PagesVictim(const std::vector<Sequence*>& holders) {
  const auto before = [](const Sequence* a, const Sequence* b) {
    if (a->state != b->state) return a->state == SequenceState::kPaused;
    return a->length() != b->length() ? a->length() < b->length() : a->place > b->place;
  };
  const auto least = std::min_element(holders.begin(), holders.end(), before);
  return least == holders.end() ? nullptr : *least;
}

// The sequence that gives its running slot up for `next`: the last in order of the client that has
// most, two at least, and never a client's first, so each client's first goes on to its end. Null:
// none; those that are more urgent, or have only just got their slot, keep it.
inline Sequence* SlotVictim(const std::set<Sequence*, RunsEarlier>& running, const Sequence& next,
                            Seconds now) {
  std::map<uint64_t, int64_t> slots;  // of each client, so far
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
