// Pages: promised, made free, swapped out and in. Read scheduler.h first.
#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "engine/schedule/scheduler.h"
#include "kernels/core/check.h"

namespace fox {

void Scheduler::Preempt(Sequence* sequence, Seconds now, Schedule* schedule) {
  StopRunning(sequence);
  sequence->pages_lost = std::max(ledger_.held(sequence->slot), sequence->slot_stats.live_pages());
  ++sequence->stats.preemptions;
  ++schedule->preemptions;
  sequence->blocked_since = kNever;
  sequence->preempted = true;
  SwapOut(sequence, &schedule->plan);
  ReleaseSlot(sequence);
  sequence->state = SequenceState::kWaiting;
  waiting_.Add(sequence, now);
}

// Takes the pages of a sequence that has a slot and does not run.
void Scheduler::TakePages(Sequence* holder, Seconds now, Schedule* schedule) {
  const bool waits = holder->state == SequenceState::kWaiting;
  if (waits) waiting_.Remove(holder);
  SwapOut(holder, &schedule->plan);
  ReleaseSlot(holder);
  ++holder->stats.preemptions;
  ++schedule->preemptions;
  if (waits) waiting_.Add(holder, now);  // with more to compute
}

// Takes pages from a sequence that does not run, else from the last one behind `requester`. False:
// there is none.
bool Scheduler::TakeFor(const Sequence& requester, Seconds now, Schedule* schedule) {
  if (Sequence* holder = PagesVictim(holders_); holder != nullptr) {
    TakePages(holder, now, schedule);
    return true;
  }
  Sequence* last = *running_.rbegin();
  if (!RunsBefore(requester, *last)) return false;
  Preempt(last, now, schedule);
  return true;
}

// Pages that its next chunk needs to be free, with those that come back from swap space.
int64_t Scheduler::PagesToGoOn(const Sequence& sequence) const {
  return ledger_.Between(sequence.computed, sequence.computed + sequence.least_chunk()) +
         (sequence.swapped ? sequence.swapped->pages : 0);
}

// A page row for each of the others that run.
int64_t Scheduler::RoomForOthers(const Sequence& sequence) const {
  const int64_t others = running() - (sequence.state == SequenceState::kRunning ? 1 : 0);
  return others * limits_.lists_per_slot;
}

// Promises pages for the least chunk, in decoding for one token, to each running sequence in order;
// those that got them. A decoding sequence preempts a later one, or waits with its pages if there
// is none. A prompt takes no page that others may need for their next row, and waits a while before
// it preempts, unless (`first_must`) no other sequence moves and it is the first. Snapshots go
// before any sequence does, and what they give is waited for.
std::vector<Sequence*> Scheduler::ReservePages(Seconds now, bool first_must, Schedule* schedule) {
  std::vector<Sequence*> ready;
  for (auto it = running_.begin(); it != running_.end();) {
    Sequence* sequence = *it;
    if (!sequence->is_schedulable()) {
      ++it;
      continue;
    }
    const int64_t need = PagesToGoOn(*sequence);
    const bool yields = sequence->prefill_left() > 0 && !(first_must && ready.empty()) &&
                        now < sequence->blocked_since + kStarvation;
    const int64_t left = yields ? RoomForOthers(*sequence) : 0;
    while (need > 0 && pages_ < need + left) {
      pages_ += prefixes_.Evict(need + left - pages_);
      if (pages_ >= need + left || prefixes_.evicting()) break;
      if (yields || !TakeFor(*sequence, now, schedule)) break;
    }
    ++it;  // only now: a victim may have been the next one
    if (need == 0 || pages_ >= need + left) {
      pages_ -= need;
      sequence->blocked_since = kNever;
      ready.push_back(sequence);
      continue;
    }
    sequence->blocked_since = std::min(sequence->blocked_since, now);
    // Two that shared pages may give back more than was counted: the plan that releases both tells.
    if (running_.size() == 1 && first_must && release_slots_.empty() && prefixes_.empty() &&
        !prefixes_.has_pending()) {
      Remove(sequence);
      schedule->does_not_fit.push_back(sequence);
      break;
    }
  }
  return ready;
}

// Of its known tokens and half of the answer that is to come, because answers beside each other
// are at all stages. A preempted sequence is expected to keep what it lost at least. Answers are
// not part of the worst case: their length is unknown.
double Scheduler::DemandOf(const Sequence& sequence) const {
  const int64_t back = sequence.swapped ? sequence.swapped->pages : 0;
  const auto all = [&](int64_t end) {
    return static_cast<double>(back + ledger_.Between(sequence.computed, end));
  };
  if (options_.kv_admission == KvAdmission::kWorstCase) return all(sequence.length());
  const double left =
      times_.ExpectedTokens(sequence.max_tokens) - static_cast<double>(sequence.produced());
  const int64_t end = sequence.length() + static_cast<int64_t>(std::max(left, 0.0) / 2);
  if (sequence.log_tolerance != log_tolerance_) return all(end);
  double kept = forecast_.At(end);
  if (sequence.slot < 0) kept = std::max(kept, static_cast<double>(sequence.pages_lost));
  const double grows = std::max(0.0, kept - forecast_.At(sequence.computed));
  return std::min(static_cast<double>(back) + grows, all(end));
}

// The pages that it is expected to take beside those that run, and a page row for each of them. One
// that runs alone starts anyway: eviction may make a long prompt fit; and one that still has its
// pages. Of one that comes back from swap space its pages count as expected, too.
bool Scheduler::HasRoom(const Sequence& next, double demand, int64_t pages) const {
  const int64_t first = PagesToGoOn(next);
  if (running_.empty() || next.slot >= 0) return pages >= first;
  const double expected = std::max(demand + DemandOf(next), static_cast<double>(first));
  return static_cast<double>(pages - RoomForOthers(next)) >= expected;
}

// Takes the pages of snapshots that it needs beside `held`, if they may be enough.
bool Scheduler::HasRoomWithoutSnapshots(const Sequence& next, double demand,
                                        int64_t held) {
  if (!HasRoom(next, demand, pages_ + held + ledger_.shared())) return false;
  while (!HasRoom(next, demand, pages_ + held)) {
    const int64_t snapshots = prefixes_.size();
    pages_ += prefixes_.Evict(1);
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
bool Scheduler::MakeRoom(Sequence* next, double demand, Seconds now,
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
    Sequence* holder = PagesVictim(holders_);
    if (holder == next) break;
    TakePages(holder, now, schedule);
  }
  return !(needs_slot && free_slots_.empty()) && HasRoom(*next, demand, pages_);
}

// Whether one that found no room never will: with its pages it has the pool to itself, or not even
// its first chunk has room in it. What this plan releases is waited for, as in ReservePages.
bool Scheduler::IsTooLarge(const Sequence& next) const {
  if (ledger_.Between(0, next.least_chunk()) > limits_.num_pages) return true;
  const bool alone = running_.empty() && next.slot >= 0 && holders_.size() == 1;
  return alone && release_slots_.empty() && !ledger_.in_flight() && !prefixes_.has_pending() &&
         (prefixes_.empty() || pages_ + ledger_.shared() < PagesToGoOn(next));
}

// Takes a slot's pages and state to host memory, where there is room and it is cheaper than to
// compute them again: there and back, against all that it has computed. What prefixes are kept
// does not count: they go before any sequence is preempted, and a swapped one leaves none.
void Scheduler::SwapOut(Sequence* sequence, StepPlan* plan) {
  if (limits_.swap_bytes == 0) return;
  // Eviction by plans in flight is not known yet. What came from a snapshot counts as unpruned
  // until a plan is collected.
  const int64_t pages = ledger_.Between(0, sequence->computed) - sequence->slot_stats.pages_evicted;
  // It might find no room for all at once.
  if (pages + PagesToGoOn(*sequence) > limits_.num_pages) return;
  const int64_t bytes = limits_.SwapBytes(pages);
  // What would be decoded again, one by one.
  const int64_t replays = limits_.chunk_multiple == 1
                              ? 0
                              : std::max<int64_t>(0, sequence->computed - sequence->prompt_tokens);
  const Seconds again = times_.Prefill(sequence->computed - replays) + times_.Decode(replays);
  if (again > 0 && 2.0 * static_cast<double>(bytes) / limits_.swap_rate > again) return;
  const std::optional<int64_t> offset = swap_space_.Take(bytes);
  if (!offset) return;
  sequence->swapped = Swapped{*offset, pages};
  plan->swap_outs.push_back({sequence->slot, *offset, pages, sequence->computed});
}

// It waits for all of its pages at once no more, and is computed again.
void Scheduler::DropSwapped(Sequence* sequence) {
  waiting_.Remove(sequence);
  swap_space_.Give(std::exchange(sequence->swapped, {})->offset);
  sequence->computed = 0;
  waiting_.Add(sequence, sequence->queue().waiting_since);  // with more to compute
}

// The sequence goes on in a slot from where it was. Within a plan all swap out before any swaps in,
// so what it reads keeps its range until the plan is complete.
void Scheduler::SwapIn(Sequence* sequence, int32_t slot, StepPlan* plan) {
  const Swapped& swapped = *sequence->swapped;
  plan->swap_ins.push_back(
      {slot, swapped.offset, swapped.pages, sequence->computed, swapped.max_log_evicted_mass});
  sequence->SwapIn(slot, ledger_.Between(0, sequence->computed));
}

}  // namespace fox
