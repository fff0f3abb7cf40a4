// Scheduler: how pages are promised and made free. Read scheduler.h first.
#include <algorithm>
#include <vector>

#include "engine/schedule/scheduler.h"
#include "kernels/core/check.h"

namespace fox {

void Scheduler::Preempt(Sequence* sequence, Seconds now, Schedule* schedule) {
  if (sequence->state == SequenceState::kWaiting) waiting_.Remove(sequence);
  if (sequence->state == SequenceState::kRunning) {
    StopRunning(sequence);
    sequence->pages_lost =
        std::max(ledger_.held(sequence->slot), sequence->slot_stats.live_pages());
    sequence->blocked_since = kNever;
    sequence->preempted = true;
    sequence->state = SequenceState::kWaiting;
  }
  ++sequence->stats.preemptions;
  ++schedule->preemptions;
  ReleaseSlot(sequence);
  if (sequence->state == SequenceState::kWaiting) waiting_.Add(sequence, now);
}

bool Scheduler::TakeFor(const Sequence& requester, Seconds now, Schedule* schedule) {
  Sequence* victim = PagesVictim(slot_holders_);
  FOX_CHECK(!running_.empty());  // the requester runs
  if (victim == nullptr) victim = *running_.rbegin();
  if (victim->state == SequenceState::kRunning && !RunsBefore(requester, *victim)) return false;
  Preempt(victim, now, schedule);
  return true;
}

int64_t Scheduler::PagesToGoOn(const Sequence& sequence) const {
  return ledger_.Between(sequence.computed, sequence.computed + sequence.min_chunk());
}

int64_t Scheduler::RoomForOthers(const Sequence& sequence) const {
  const int64_t others = running() - (sequence.state == SequenceState::kRunning ? 1 : 0);
  return others * limits_.lists_per_slot;
}

// Promises pages for min_chunk() tokens to each running sequence in order, and returns the
// sequences that got them. A decoding sequence preempts a later one. A prompt leaves every other
// sequence a page row and waits kStarvation before it preempts. Snapshots are dropped before a
// sequence is preempted, and the pages that they may free are waited for.
std::vector<Sequence*> Scheduler::ReservePages(Seconds now, Schedule* schedule) {
  std::vector<Sequence*> ready;
  for (auto it = running_.begin(); it != running_.end();) {
    Sequence* sequence = *it;
    if (!sequence->is_schedulable()) {
      ++it;
      continue;
    }
    const int64_t need = PagesToGoOn(*sequence);
    const bool yields = sequence->prefill_left() > 0 && now < sequence->blocked_since + kStarvation;
    const int64_t left = yields ? RoomForOthers(*sequence) : 0;
    while (need > 0 && pages_ < need + left) {
      pages_ += prefixes_.Evict(need + left - pages_);
      if (pages_ >= need + left || prefixes_.evicting()) break;
      if (yields || !TakeFor(*sequence, now, schedule)) break;
    }
    ++it;  // only now, because the victim may have been the next sequence
    if (need == 0 || pages_ >= need + left) {
      pages_ -= need;
      sequence->blocked_since = kNever;
      ready.push_back(sequence);
      continue;
    }
    sequence->blocked_since = std::min(sequence->blocked_since, now);
    // Slots that shared pages may free more than the ledger counts. The plan that releases both
    // tells, so wait for it.
    if (running_.size() == 1 && !yields && !ledger_.in_flight() && release_slots_.empty() &&
        prefixes_.empty() && !prefixes_.has_pending()) {
      End(sequence, absl::OutOfRangeError(kTooLarge), schedule);
      break;
    }
  }
  return ready;
}

// Pages that the sequence is expected to take still: for half of the rest of its answer, because
// answers beside each other are at all stages. The worst case is without the answer, whose length
// is unknown.
double Scheduler::DemandOf(const Sequence& sequence) const {
  const auto all = [&](int64_t end) {
    return static_cast<double>(ledger_.Between(sequence.computed, end));
  };
  if (options_.kv_admission == KvAdmission::kWorstCase) return all(sequence.length());
  const double left = std::max(ExpectedLeft(sequence), 0.0);
  const int64_t end = sequence.length() + static_cast<int64_t>(left / 2);
  if (sequence.log_tolerance != log_tolerance_) return all(end);
  double kept = forecast_.At(end);
  if (sequence.slot < 0) kept = std::max(kept, static_cast<double>(sequence.pages_lost));
  return std::min(std::max(0.0, kept - forecast_.At(sequence.computed)), all(end));
}

// True if `pages` are enough to start `next`. A sequence that runs alone needs pages for one chunk
// only: eviction may make a long prompt fit.
bool Scheduler::HasRoom(const Sequence& next, double demand, int64_t pages) const {
  const int64_t first = PagesToGoOn(next);
  if (running_.empty() || next.slot >= 0) return pages >= first;
  const double expected = std::max(demand + DemandOf(next), static_cast<double>(first));
  return static_cast<double>(pages - RoomForOthers(next)) >= expected;
}

bool Scheduler::HasRoomWithoutSnapshots(const Sequence& next, double demand, int64_t held) {
  if (!HasRoom(next, demand, pages_ + held + ledger_.shared())) return false;
  while (!HasRoom(next, demand, pages_ + held)) {
    const int64_t snapshots = prefixes_.size();
    pages_ += prefixes_.Evict(1);
    if (prefixes_.size() == snapshots) return false;
  }
  return true;
}

// True if the pages that `next` lacks beside `held` must be free although the executor has not
// reported them: no sequence runs and there are no snapshots. A plan that releases all slots makes
// the count exact (see Next).
bool Scheduler::IsCountLow(const Sequence& next, int64_t held) const {
  return running_.empty() && held > 0 && !ledger_.in_flight() && prefixes_.empty() &&
         !prefixes_.has_pending() && pages_ + held + ledger_.shared() >= PagesToGoOn(next);
}

bool Scheduler::MakeRoom(Sequence* next, double demand, Seconds now, Schedule* schedule) {
  const auto has_slot = [&] { return next->slot >= 0 || !free_slots_.empty(); };
  if (has_slot() && HasRoomWithoutSnapshots(*next, demand, /*held=*/0)) return true;
  int64_t held = 0;
  for (const Sequence* holder : slot_holders_) {
    if (holder != next) held += ledger_.held(holder->slot);
  }
  if (!HasRoomWithoutSnapshots(*next, demand, held) && !IsCountLow(*next, held)) return false;
  while (!slot_holders_.empty() && !(has_slot() && HasRoom(*next, demand, pages_))) {
    Sequence* holder = PagesVictim(slot_holders_);
    if (holder == next) break;
    Preempt(holder, now, schedule);
  }
  return has_slot() && HasRoom(*next, demand, pages_);
}

// True if the pool can never hold `next`: its first chunk is larger than the pool, or it already
// has the pool to itself. Pages that this plan releases are waited for, as in ReservePages.
bool Scheduler::IsTooLarge(const Sequence& next) const {
  if (ledger_.Between(0, next.min_chunk()) > limits_.num_pages) return true;
  const bool alone = running_.empty() && next.slot >= 0 && slot_holders_.size() == 1;
  return alone && release_slots_.empty() && !ledger_.in_flight() && !prefixes_.has_pending() &&
         (prefixes_.empty() || pages_ + ledger_.shared() < PagesToGoOn(next));
}

}  // namespace fox
