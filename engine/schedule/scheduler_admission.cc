// Which sequence gets a running slot, and whether the pool has room for it. Read scheduler.h first.
#include <algorithm>
#include <iterator>
#include <map>
#include <utility>
#include <vector>

#include "engine/schedule/scheduler.h"
#include "kernels/core/check.h"
#include "kernels/paged_kv.h"

namespace fox {
namespace {

// One that was preempted with a plan in flight comes back when that has been collected.
bool IsReady(const Sequence& waiting) {
  return waiting.is_schedulable() && (waiting.slot >= 0 || waiting.in_flight == 0);
}

}  // namespace

// A preempted sequence kept more than was expected: it is expected to keep twice as many. Answers
// are not part of the worst case: their length is unknown.
PageDemand::Of Scheduler::DemandOf(const Sequence& sequence) const {
  PageDemand::Of demand;
  if (sequence.slot >= 0) {
    demand.held = ledger_.held(sequence.slot) + taken_[static_cast<size_t>(sequence.slot)];
    // With what it shares with snapshots, which it does not take again.
    demand.held = std::max(demand.held, sequence.slot_stats.live_pages());
  }
  demand.most = ledger_.Between(sequence.computed, sequence.length());
  const int64_t back = sequence.swapped ? sequence.swapped->pages : 0;
  demand.most += back;
  demand.expected = static_cast<double>(demand.most);
  if (admission_ == KvAdmission::kWorstCase) return demand;
  const int64_t most_left = sequence.max_tokens - sequence.produced();
  const double left =
      times_.ExpectedTokens(sequence.max_tokens) - static_cast<double>(sequence.produced());
  demand.tokens_left = std::min(std::max(left, 1.0 * kPageTokens), static_cast<double>(most_left));
  if (sequence.log_tolerance != log_tolerance_) {
    demand.per_token = static_cast<double>(limits_.lists_per_slot) / kPageTokens;
    return demand;
  }
  demand.per_token = forecast_.PerToken(sequence.length());
  if (demand.most == back) return demand;
  const PageForecast::Estimate kept = forecast_.At(sequence.length(), sequence.slot);
  const double least = 2 * static_cast<double>(sequence.pages_lost);
  // One that would start from a snapshot takes what comes behind it.
  const bool starts = sequence.slot < 0 && sequence.computed > 0 && !sequence.swapped;
  const double has =
      starts ? forecast_.At(sequence.computed, -1).pages : static_cast<double>(demand.held + back);
  const double rest = std::max(kept.pages, least) - has;
  demand.expected = std::clamp(rest, 0.0, demand.expected - static_cast<double>(back)) +
                    static_cast<double>(back);
  demand.deviation = kept.deviation;
  return demand;
}

// The pages that it is expected to take beside those that run, and a page row for each of them. One
// that runs alone starts anyway: eviction may make a long prompt fit; and one that still has its
// pages. Of one that comes back from swap space its pages count as expected, too.
bool Scheduler::HasRoom(const Sequence& next, const PageDemand& demand, int64_t pages) const {
  const int64_t first = PagesToGoOn(next);
  if (running_.empty() || next.slot >= 0) return pages >= first;
  const int64_t needed = demand.With(DemandOf(next), /*given=*/kPageTokens);
  return pages >= std::max(needed, first) + RoomForOthers(next);
}

// Takes the pages of snapshots that it needs beside `held`, if they may be enough.
bool Scheduler::HasRoomWithoutSnapshots(const Sequence& next, const PageDemand& demand,
                                        int64_t held) {
  if (!HasRoom(next, demand, pages_ + held + ledger_.shared())) return false;
  while (!HasRoom(next, demand, pages_ + held)) {
    const int64_t snapshots = prefixes_.size();
    pages_ += prefixes_.Reclaim(1);
    if (prefixes_.size() == snapshots) return false;
  }
  return true;
}

// Whether what `next` misses beside `held` is free, though the executor does not say so yet: no
// sequence runs and there are no snapshots. A plan that releases all slots tells (Next).
bool Scheduler::IsCountLow(const Sequence& next, int64_t held) const {
  return running_.empty() && held > 0 && !ledger_.in_flight() && prefixes_.empty() &&
         !prefixes_.has_pending() && pages_ + held + ledger_.shared() >= PagesToGoOn(next);
}

// Finds a slot and pages, if need be those of snapshots, of sequences that do not run, or of both.
bool Scheduler::MakeRoom(Sequence* next, const PageDemand& demand, Seconds now,
                         Schedule* schedule) {
  const bool needs_slot = next->slot < 0;
  const bool has_slot = !needs_slot || !free_slots_.empty();
  if (has_slot && HasRoomWithoutSnapshots(*next, demand, /*held=*/0)) return true;
  int64_t held = 0;
  for (const Sequence* holder : holders_) {
    if (holder != next) held += ledger_.held(holder->slot);
  }
  if (!HasRoomWithoutSnapshots(*next, demand, held) && !IsCountLow(*next, held)) return false;
  while (!holders_.empty() &&
         ((needs_slot && free_slots_.empty()) || !HasRoom(*next, demand, pages_))) {
    Sequence* holder = SelectHolder(now);
    if (holder == next) break;
    TakePages(holder, now, schedule);
  }
  return !(needs_slot && free_slots_.empty()) && HasRoom(*next, demand, pages_);
}

// Whether a sequence that has not started could not finish before its deadline; or, where it could
// not even if it had started at once, not begin.
bool Scheduler::MissesDeadline(const Sequence& next, Seconds now) const {
  if (next.started || next.request.deadline == kNever || running_.empty() || !times_.known()) {
    return false;
  }
  const Seconds first = times_.FirstToken(next.prompt_tokens);
  const Seconds whole = times_.Service(next.prompt_tokens, next.max_tokens);
  const bool could_finish = next.stats.arrival + whole <= next.request.deadline;
  return now + (could_finish ? std::max(first, 0.7 * whole) : first) > next.request.deadline;
}

// Gives `next` a running slot if there is room. False: nothing has changed.
bool Scheduler::Start(Sequence* next, Seconds now, PageDemand* demand, Budget* budget,
                      Schedule* schedule) {
  const bool begins = next->slot < 0 && !next->swapped;
  if (!next->is_schedulable()) return false;
  if (begins) next->computed = prefixes_.Pin(*next);
  // No sequence gives up pages for one that this step has no room for.
  if (limits_.chunk_multiple > 1 && ChunkWithin(*next, *budget, next->longest_chunk()) == 0) {
    if (begins) next->computed = 0;
    return false;
  }
  bool has_room = MakeRoom(next, *demand, now, schedule);
  if (!has_room && begins && running_.empty()) {
    // It may be the snapshot that it would start from that leaves it no room.
    prefixes_.Unpin(next);
    next->computed = 0;
    has_room = MakeRoom(next, *demand, now, schedule);
  }
  if (!has_room) {
    if (begins) next->computed = 0;
    return false;
  }
  const int64_t need = PagesToGoOn(*next);
  pages_ -= need;  // as ReservePages does
  const int64_t count = ChunkSize(*next, *budget);
  if (count == 0) {
    pages_ += need;
    if (begins) next->computed = 0;
    return false;
  }
  const bool ran = next->queue().running_since != kNever;
  const bool anew = !next->preempted && (!ran || next->reads_slowly());
  waiting_.Start(next, now);
  const int64_t back = next->swapped ? next->swapped->pages : 0;
  if (next->slot < 0) {
    const int32_t slot = free_slots_.back();
    free_slots_.pop_back();
    if (next->swapped) {
      SwapIn(next, slot, schedule);
      prefixes_.Return(next);
    } else {
      next->slot = slot;
      prefixes_.Start(next);
    }
  } else {
    holders_.erase(std::find(holders_.begin(), holders_.end(), next));
  }
  if (anew) next->place = places_++;
  next->state = SequenceState::kRunning;
  next->blocked_since = kNever;
  FOX_CHECK(running_.insert(next).second);
  Plan(next, count, now, budget, schedule);
  taken_[static_cast<size_t>(next->slot)] += back;
  demand->Add(DemandOf(*next));
  return true;
}

// Whether another sequence is about to leave a snapshot that it may start from.
bool Scheduler::WaitsForPrefix(Sequence* next) {
  return next->slot < 0 && !next->swapped && prefixes_.Find(next);
}

// It runs no more, and waits for another running slot with its pages.
void Scheduler::Yield(Sequence* sequence, Seconds now) {
  Rest(sequence);
  sequence->state = SequenceState::kWaiting;
  sequence->preempted = false;
  sequence->blocked_since = kNever;
  waiting_.Add(sequence, now);
}

// Beside others slow readers have their share of running slots: the newest requests wait for it.
void Scheduler::LimitSlowReaders(Seconds now) {
  std::vector<Sequence*> slow;
  std::copy_if(running_.begin(), running_.end(), std::back_inserter(slow),
               [](const Sequence* sequence) { return sequence->reads_slowly(); });
  if (slow.size() == running_.size()) return;
  std::sort(slow.begin(), slow.end(),
            [](const Sequence* a, const Sequence* b) { return a->arrival < b->arrival; });
  for (; static_cast<int64_t>(slow.size()) > max_slow(); slow.pop_back()) Yield(slow.back(), now);
}

// The sequence that gives its running slot up for `next`: the last in order of the client that has
// most, two at least, and never a client's first, so each client's first goes on to its end. Null:
// none; those that are more urgent, or have only just got their slot, keep it.
Sequence* Scheduler::SelectYielding(const Sequence& next, Seconds now) const {
  std::map<uint64_t, int64_t> slots;  // of each client, so far
  int64_t most = 2;
  Sequence* last = nullptr;
  for (Sequence* sequence : running_) {
    const int64_t count = ++slots[sequence->request.client];
    if (count < most || sequence->priority < next.priority) continue;
    if (now < sequence->queue().running_since + WaitingQueue::kSlotTurn) continue;
    most = count;
    last = sequence;
  }
  return last;
}

// One slot a step, if none is free, for the client that is due it first. A request that found no
// pages though it was due tries again when it holds others back (Admit).
void Scheduler::YieldSlot(Seconds now) {
  if (running() < max_running_) return;
  waiting_.BeginRound();
  for (Sequence* next = waiting_.Due(now); next != nullptr; next = waiting_.Due(now)) {
    const Seconds due = next->queue().waiting_since + WaitingQueue::kSlotTurn;
    if (next->blocked_since < due) next->blocked_since = kNever;
    const bool blocked = now >= next->blocked_since && now < next->blocked_since + kBackfilling;
    if (!blocked && IsReady(*next) && !WaitsForPrefix(next)) {
      Sequence* last = SelectYielding(*next, now);
      if (last != nullptr) Yield(last, now);
      return;
    }
    waiting_.PassOver(next);
  }
}

// Whether one that found no room never will: with its pages it has the pool to itself, or not even
// its first chunk has room in it. What this plan releases is waited for, as in ReservePages.
bool Scheduler::IsTooLarge(const Sequence& next) const {
  if (ledger_.Between(0, next.least_chunk()) > limits_.num_pages) return true;
  const bool alone = running_.empty() && next.slot >= 0 && holders_.size() == 1;
  return alone && release_slots_.empty() && !ledger_.in_flight() && !prefixes_.has_pending() &&
         (prefixes_.empty() || pages_ + ledger_.shared() < PagesToGoOn(next));
}

// By turns; only those whose tokens all go into this plan, if `whole_prompts`. One that finds no
// room is passed over, and holds back the rest after a while. A slow reader gets a slot of the
// share that all of them have, in a step that may have some; one that was preempted, any.
void Scheduler::Admit(Seconds now, bool whole_prompts, Budget* budget, Schedule* schedule) {
  if (waiting_.size() == 0) return;
  std::vector<PageDemand::Of> demands;
  int64_t slow = 0;
  for (const Sequence* sequence : running_) {
    demands.push_back(DemandOf(*sequence));
    if (sequence->reads_slowly()) ++slow;
  }
  PageDemand demand(std::move(demands));
  waiting_.BeginRound();
  int passed_over = 0;
  while (budget->prefill > 0 && running() < max_running_ && passed_over < kMostPassedOver) {
    Sequence* next = waiting_.Next(now);
    if (next == nullptr) return;
    if (next->paused()) {  // by what a plan in flight has brought
      waiting_.Remove(next);
      Pause(next, schedule);
      continue;
    }
    if (MissesDeadline(*next, now)) {
      Remove(next);
      schedule->misses_deadline.push_back(next);
      continue;
    }
    const bool best_effort = next->reads_slowly();
    const bool eligible = !best_effort || next->preempted || waiting_.IsAged(*next, now) ||
                          (budget->best_effort && (slow < max_slow() || slow == running()));
    const bool ready = eligible && IsReady(*next);
    if (ready && WaitsForPrefix(next)) {
      waiting_.PassOver(next);
      continue;
    }
    if (ready) {
      const bool overdue = now >= next->blocked_since + kBackfilling;
      const int64_t left = next->longest_chunk() - (next->slot < 0 ? next->prefix().found : 0);
      const bool fits =
          !whole_prompts || overdue || left <= budget->prefill || waiting_.IsDue(*next, now);
      if (fits && Start(next, now, &demand, budget, schedule)) {
        if (best_effort) ++slow;
        if (best_effort && budget->best_effort) steps_without_best_effort_ = 0;
        continue;
      }
      if (IsTooLarge(*next)) {
        Remove(next);
        schedule->does_not_fit.push_back(next);
        continue;
      }
      // All the pages that there are do not do for all of its own at once; for one after another
      // they may.
      if (running_.empty() && next->swapped && !ledger_.in_flight() && !prefixes_.has_pending()) {
        DropSwapped(next, &schedule->plan);
        continue;
      }
      if (overdue) return;
      next->blocked_since = std::min(next->blocked_since, now);
    }
    waiting_.PassOver(next);
    if (eligible) ++passed_over;
  }
}

}  // namespace fox
