// What becomes of those that are preempted: swapped out, or computed again. Read scheduler.h and
// swap_space.h first.
#include <algorithm>
#include <optional>
#include <vector>

#include "engine/schedule/scheduler.h"
#include "kernels/core/check.h"

namespace fox {
namespace {

// Of two without a slot; about: turns of clients and ages change it.
bool ReturnsBefore(const Sequence* a, const Sequence* b) {
  if (a->preempted != b->preempted) return a->preempted;
  const bool a_rests = a->paused(), b_rests = b->paused();
  return a_rests != b_rests ? b_rests : RunsBefore(*a, *b);
}

}  // namespace

// Pages that its next chunk needs to be free, with those that come back from swap space.
int64_t Scheduler::PagesToGoOn(const Sequence& sequence) const {
  return ledger_.Between(sequence.computed, sequence.computed + sequence.least_chunk()) +
         (sequence.swapped ? sequence.swapped->pages : 0);
}

// Takes a slot's pages and state to host memory, where there is room and it is cheaper than to
// compute them again: there and back, against all that it has computed. What prefixes are kept
// does not count: they go before any sequence is preempted, and a swapped one leaves none.
void Scheduler::SwapOut(Sequence* sequence, bool drops, Schedule* schedule) {
  if (swap_space_.bytes() == 0) return;
  // Eviction by plans in flight is not known yet. What came from a snapshot counts as unpruned
  // until a plan is collected.
  const int64_t pages = ledger_.Between(0, sequence->computed) - sequence->slot_stats.pages_evicted;
  // It might find no room for all at once.
  if (pages + PagesToGoOn(*sequence) > limits_.num_pages) return;
  const int64_t bytes = limits_.SwapBytes(pages);
  const int64_t replays = sequence->replayed_if_lost();
  const Seconds again = times_.Prefill(sequence->computed - replays) + times_.Decode(replays);
  if (again > 0 && times_.Swap(2 * bytes, limits_.swap_rate) > again) return;
  const std::optional<SwapRange> range = TakeSwapRange(*sequence, drops, bytes, schedule);
  if (!range) return;
  sequence->swapped = Swapped{*range, pages};
  swapped_.push_back(sequence);
  schedule->plan.swap_outs.push_back({sequence->slot, range->begin, pages, sequence->computed});
}

// If there is no room and it `drops` others: those go that come back after it, the last first, if
// that makes room.
std::optional<SwapRange> Scheduler::TakeSwapRange(const Sequence& sequence, bool drops,
                                                  int64_t bytes, Schedule* schedule) {
  for (Sequence* other : swapped_) {
    if (other->in_flight > 0) continue;
    swap_space_.Trim(&other->swapped->range, limits_.SwapBytes(other->swapped->pages));
  }
  if (std::optional<SwapRange> range = swap_space_.Take(bytes); range || !drops) return range;
  std::sort(swapped_.begin(), swapped_.end(), ReturnsBefore);
  SwapSpace rest = swap_space_;
  size_t kept = swapped_.size();
  while (kept > 0 && ReturnsBefore(&sequence, swapped_[kept - 1])) {
    rest.Give(swapped_[--kept]->swapped->range);
    if (!rest.Take(bytes)) continue;
    while (swapped_.size() > kept) DropSwapped(swapped_.back(), &schedule->plan);
    return swap_space_.Take(bytes);
  }
  return std::nullopt;
}

void Scheduler::ForgetSwapped(const Sequence* sequence) {
  const auto found = std::find(swapped_.begin(), swapped_.end(), sequence);
  FOX_CHECK(found != swapped_.end());
  swapped_.erase(found);
}

// It will be computed again.
void Scheduler::DropSwapped(Sequence* sequence, StepPlan* plan) {
  ForgetSwapped(sequence);
  const SwapRange range = sequence->swapped->range;
  swap_space_.Give(range);
  // It may have been swapped out by this very plan.
  auto& outs = plan->swap_outs;
  outs.erase(std::remove_if(outs.begin(), outs.end(),
                            [&](const SwappedSlot& out) { return out.offset == range.begin; }),
             outs.end());
  const bool waits = sequence->state == SequenceState::kWaiting;
  if (waits) waiting_.Remove(sequence);
  sequence->swapped.reset();
  sequence->computed = 0;
  if (waits) waiting_.Add(sequence, sequence->queue().waiting_since);  // with more to compute
}

// The sequence goes on in a slot from where it was.
void Scheduler::SwapIn(Sequence* sequence, int32_t slot, Schedule* schedule) {
  ForgetSwapped(sequence);
  const Swapped& swapped = *sequence->swapped;
  schedule->plan.swap_ins.push_back(
      {slot, swapped.range.begin, swapped.pages, sequence->computed, swapped.max_log_evicted_mass});
  ranges_read_.push_back(swapped.range);
  sequence->SwapIn(slot, ledger_.Between(0, sequence->computed));
}

}  // namespace fox
