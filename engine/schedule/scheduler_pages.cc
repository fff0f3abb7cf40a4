// Pages: promised, made free, swapped. Read scheduler.h first.
#include <algorithm>
#include <optional>
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
  SwapOut(sequence, &schedule->plan);
  ReleaseSlot(sequence);
  if (sequence->state == SequenceState::kWaiting) waiting_.Add(sequence, now);
}

bool Scheduler::TakeFor(const Sequence& requester, Seconds now, Schedule* schedule) {
  Sequence* victim = PagesVictim(holders_);
  if (victim == nullptr) victim = *running_.rbegin();
  if (victim->state == SequenceState::kRunning && !RunsBefore(requester, *victim)) return false;
  Preempt(victim, now, schedule);
  return true;
}

int64_t Scheduler::PagesToGoOn(const Sequence& sequence) const {
  return ledger_.Between(sequence.computed, sequence.computed + sequence.least_chunk()) +
         (sequence.swapped ? sequence.swapped->pages : 0);
}

int64_t Scheduler::RoomForOthers(const Sequence& sequence) const {
  const int64_t others = running() - (sequence.state == SequenceState::kRunning ? 1 : 0);
  return others * limits_.lists_per_slot;
}

// Promises pages for the least chunk to each running sequence in order; those that got them. A
// decoding one preempts a later one. A prompt takes no page that others may need for their next
// row, and waits a while before it preempts, unless (`first_must`) no other sequence moves and it
// is the first. Snapshots go before any sequence does, and what they give is waited for.
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
    // Two that shared pages may free more than the ledger counts: the plan of both releases tells.
    if (running_.size() == 1 && first_must && release_slots_.empty() && prefixes_.empty() &&
        !prefixes_.has_pending()) {
      End(sequence, absl::OutOfRangeError(kTooLarge), schedule);
      break;
    }
  }
  return ready;
}

// Pages that it is expected to take: half of the answer that is to come, because answers beside
// each other are at all stages. Answers are not part of the worst case: their length is unknown.
double Scheduler::DemandOf(const Sequence& sequence) const {
  const int64_t back = sequence.swapped ? sequence.swapped->pages : 0;
  const auto all = [&](int64_t end) {
    return static_cast<double>(back + ledger_.Between(sequence.computed, end));
  };
  if (options_.kv_admission == KvAdmission::kWorstCase) return all(sequence.length());
  const double left = std::max(ExpectedLeft(sequence), 0.0);
  const int64_t end = sequence.length() + static_cast<int64_t>(left / 2);
  if (sequence.log_tolerance != log_tolerance_) return all(end);
  double kept = forecast_.At(end);
  if (sequence.slot < 0) kept = std::max(kept, static_cast<double>(sequence.pages_lost));
  const double grows = std::max(0.0, kept - forecast_.At(sequence.computed));
  return std::min(static_cast<double>(back) + grows, all(end));
}

// One that runs alone starts anyway: eviction may make a long prompt fit.
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

// Whether what `next` misses beside `held` is free, though the executor does not say so yet: no
// sequence runs and there are no snapshots. A plan that releases all slots tells (Next).
bool Scheduler::IsCountLow(const Sequence& next, int64_t held) const {
  return running_.empty() && held > 0 && !ledger_.in_flight() && prefixes_.empty() &&
         !prefixes_.has_pending() && pages_ + held + ledger_.shared() >= PagesToGoOn(next);
}

bool Scheduler::MakeRoom(Sequence* next, double demand, Seconds now, Schedule* schedule) {
  const auto has_slot = [&] { return next->slot >= 0 || !free_slots_.empty(); };
  if (has_slot() && HasRoomWithoutSnapshots(*next, demand, /*held=*/0)) return true;
  int64_t held = 0;
  for (const Sequence* holder : holders_) {
    if (holder != next) held += ledger_.held(holder->slot);
  }
  if (!HasRoomWithoutSnapshots(*next, demand, held) && !IsCountLow(*next, held)) return false;
  while (!holders_.empty() && !(has_slot() && HasRoom(*next, demand, pages_))) {
    Sequence* holder = PagesVictim(holders_);
    if (holder == next) break;
    Preempt(holder, now, schedule);
  }
  return has_slot() && HasRoom(*next, demand, pages_);
}

// With its pages it has the pool to itself, or not even its first chunk has room in it. What this
// plan releases is waited for, as in ReservePages.
bool Scheduler::IsTooLarge(const Sequence& next) const {
  if (ledger_.Between(0, next.least_chunk()) > limits_.num_pages) return true;
  const bool alone = running_.empty() && next.slot >= 0 && holders_.size() == 1;
  return alone && release_slots_.empty() && !ledger_.in_flight() && !prefixes_.has_pending() &&
         (prefixes_.empty() || pages_ + ledger_.shared() < PagesToGoOn(next));
}

// Where there is room and the way there and back is cheaper than to compute all of it again.
void Scheduler::SwapOut(Sequence* sequence, StepPlan* plan) {
  if (limits_.swap_bytes == 0) return;
  // Eviction by plans in flight is not known yet. What came from a snapshot counts as unpruned
  // until a plan is collected.
  const int64_t pages = ledger_.Between(0, sequence->computed) - sequence->slot_stats.pages_evicted;
  // All of it comes back at once.
  if (pages + PagesToGoOn(*sequence) > limits_.num_pages) return;
  const int64_t bytes = limits_.SwapBytes(pages);
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

void Scheduler::SwapIn(Sequence* sequence, int32_t slot, StepPlan* plan) {
  const Swapped& swapped = *sequence->swapped;
  plan->swap_ins.push_back(
      {slot, swapped.offset, swapped.pages, sequence->computed, swapped.max_log_evicted_mass});
  sequence->SwapIn(slot, ledger_.Between(0, sequence->computed));
}

}  // namespace fox
