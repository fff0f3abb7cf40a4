// Scheduling in four passes: promise every running sequence the pages of its next token, plan
// decodes, plan prefill chunks, admit from the queue. Read scheduler.h first.
#include "engine/scheduler.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "kernels/core/check.h"
#include "kernels/paged_kv.h"

namespace fox {

// At most as many sequences run as can all decode in one step.
Scheduler::Scheduler(const ExecutorLimits& limits, const ServiceTimes& times,
                     double max_step_seconds)
    : limits_(limits),
      times_(times),
      max_step_seconds_(max_step_seconds),
      max_running_(std::min({static_cast<int64_t>(limits.max_num_seqs),
                             limits.max_num_batched_tokens, limits.max_logit_rows})),
      ledger_(limits) {
  FOX_CHECK(max_running_ > 0 && limits.lists_per_slot > 0 && limits.num_pages >= 0);
  for (int32_t slot = limits.slots() - 1; slot >= 0; --slot) free_slots_.push_back(slot);
}

void Scheduler::Add(Sequence* sequence, Seconds now) {
  FOX_CHECK(sequence->state == SequenceState::kNone && sequence->slot < 0);
  FOX_CHECK(sequence->computed == 0 && !sequence->tokens.empty());
  waiting_.Enter(*sequence);
  sequence->place = places_++;
  sequence->state = SequenceState::kWaiting;
  waiting_.Add(sequence, now);
}

void Scheduler::Remove(Sequence* sequence) {
  switch (sequence->state) {
    case SequenceState::kWaiting:
      waiting_.Remove(sequence);
      break;
    case SequenceState::kRunning:
      FOX_CHECK(running_.erase(sequence) == 1);
      waiting_.Charge(sequence);
      break;
    case SequenceState::kPaused:
      --paused_;
      break;
    default:
      FOX_CHECK(false);
  }
  if (sequence->slot >= 0) ReleaseSlot(sequence);
  sequence->state = SequenceState::kNone;
  waiting_.Leave(*sequence);
}

void Scheduler::Resume(Sequence* sequence, Seconds now) {
  if (sequence->state != SequenceState::kPaused) return;
  --paused_;
  sequence->state = SequenceState::kWaiting;
  if (sequence->slot < 0) sequence->place = places_++;
  waiting_.Add(sequence, now);
}

std::vector<Work> Scheduler::RunningWork() const {
  std::vector<Work> work;
  for (const Sequence* sequence : running_) {
    // Of one token the sequence is expected to sample the next; that is decoding.
    const int64_t prefill = sequence->remaining() > 1 ? sequence->remaining() : 0;
    double left =
        times_.ExpectedTokens(sequence->max_tokens) - static_cast<double>(sequence->produced());
    // A reader that has not taken half of what there is has yet to show that it takes more.
    const int64_t window = sequence->request.flow_window;
    const int64_t ahead = sequence->produced() - sequence->acknowledged;
    if (window > 0 && ahead >= sequence->acknowledged) {
      left = std::min(left, static_cast<double>(window - ahead));
    }
    work.push_back({static_cast<double>(prefill), std::max(left, 1.0), 1});
  }
  return work;
}

Schedule Scheduler::Next(Seconds now) {
  Schedule schedule;
  for (auto it = running_.begin(); it != running_.end();) {
    Sequence* sequence = *it++;
    if (sequence->paused()) Rest(sequence, &schedule);
  }
  int64_t free = ledger_.free();
  for (const int32_t slot : release_slots_) free += ledger_.held(slot);
  // With no slot in use everything is free once this plan has released what it must, however late
  // the count of free pages is.
  const bool unused = running_.empty() && holders_.empty();
  pages_ = unused ? limits_.num_pages : std::min(limits_.num_pages, free);
  Budget budget{limits_.max_num_batched_tokens, limits_.max_num_batched_tokens,
                limits_.max_logit_rows};
  const std::vector<Sequence*> ready = ReservePages(now, &schedule);
  const bool others =
      std::any_of(ready.begin(), ready.end(), [](const auto* s) { return !s->reads_slowly(); });
  budget.guests = !others || ++steps_without_guests_ >= times_.GuestTurn();
  schedule.guests = others && budget.guests;
  std::vector<Sequence*> prefills;
  for (Sequence* sequence : ready) {
    if (sequence->reads_slowly()) {
      if (!budget.guests) continue;
      steps_without_guests_ = 0;
    }
    if (sequence->remaining() > 1) {
      prefills.push_back(sequence);
    } else {
      Plan(sequence, 1, now, &budget, &schedule);
    }
  }
  if (max_step_seconds_ > 0) {
    const auto decodes = static_cast<int64_t>(schedule.sequences.size());
    budget.prefill = std::min(budget.tokens, times_.PrefillTokens(max_step_seconds_, decodes));
  }
  if (!prefills.empty()) {
    const int64_t kept = (budget.prefill + 1) / 2, kept_rows = (budget.logit_rows + 1) / 2;
    budget.prefill -= kept;
    budget.logit_rows -= kept_rows;
    Admit(now, /*whole_prompts=*/true, &budget, &schedule);
    budget.prefill = std::min(budget.prefill + kept, budget.tokens);
    budget.logit_rows += kept_rows;
    PlanPrefills(std::move(prefills), now, &budget, &schedule);
  }
  Admit(now, /*whole_prompts=*/false, &budget, &schedule);
  FOX_CHECK(budget.tokens >= 0 && budget.logit_rows >= 0);
  schedule.plan.release_slots = std::exchange(release_slots_, {});
  if (!schedule.plan.empty()) ledger_.Submit(schedule.plan);
  return schedule;
}

void Scheduler::ReleaseSlot(Sequence* sequence) {
  release_slots_.push_back(sequence->slot);
  pages_ += ledger_.held(sequence->slot);
  const auto place =
      std::lower_bound(free_slots_.begin(), free_slots_.end(), sequence->slot, std::greater<>());
  free_slots_.insert(place, sequence->slot);
  const auto holder = std::find(holders_.begin(), holders_.end(), sequence);
  if (holder != holders_.end()) holders_.erase(holder);
  if (by_chunks_ == sequence) by_chunks_ = nullptr;
  sequence->ReleaseSlot();
}

void Scheduler::Rest(Sequence* sequence, Schedule* schedule) {
  FOX_CHECK(running_.erase(sequence) == 1);
  waiting_.Charge(sequence);
  holders_.push_back(sequence);
  Pause(sequence, schedule);
}

void Scheduler::Pause(Sequence* sequence, Schedule* schedule) {
  sequence->state = SequenceState::kPaused;
  sequence->preempted = false;
  ++paused_;
  schedule->paused.push_back(sequence);
}

void Scheduler::Preempt(Sequence* sequence, Seconds now, Schedule* schedule) {
  FOX_CHECK(running_.erase(sequence) == 1);
  waiting_.Charge(sequence);
  sequence->pages_lost = ledger_.held(sequence->slot);
  ReleaseSlot(sequence);
  ++sequence->stats.preemptions;
  ++schedule->preemptions;
  ++sequence->losses;
  sequence->preempted = true;
  sequence->state = SequenceState::kWaiting;
  waiting_.Add(sequence, now);
}

void Scheduler::TakePages(Sequence* holder, Seconds now, Schedule* schedule) {
  const bool waits = holder->state == SequenceState::kWaiting;
  if (waits) waiting_.Remove(holder);
  ReleaseSlot(holder);
  ++holder->stats.preemptions;
  ++schedule->preemptions;
  if (!waits) return;
  holder->place = places_++;
  waiting_.Add(holder, now);
}

// Of those that hold pages and do not run: who is paused for long, the longest first; then who
// costs least to be computed again.
Sequence* Scheduler::SelectHolder(Seconds now) const {
  constexpr Seconds kLong = 5.0;
  const auto before = [now](const Sequence* a, const Sequence* b) {
    const bool a_waits = a->state == SequenceState::kWaiting;
    const bool b_waits = b->state == SequenceState::kWaiting;
    if (a_waits != b_waits) return b_waits;
    const bool a_long = !a_waits && now >= a->paused_since + kLong;
    const bool b_long = !b_waits && now >= b->paused_since + kLong;
    if (a_long != b_long) return a_long;
    if (a_long && a->paused_since != b->paused_since) return a->paused_since < b->paused_since;
    return a->length() != b->length() ? a->length() < b->length() : a->place > b->place;
  };
  const auto least = std::min_element(holders_.begin(), holders_.end(), before);
  return least == holders_.end() ? nullptr : *least;
}

// Takes pages from a sequence that does not run, else from the last one behind `requester`. False:
// there is none.
bool Scheduler::TakeFor(const Sequence& requester, Seconds now, Schedule* schedule) {
  if (Sequence* holder = SelectHolder(now); holder != nullptr) {
    TakePages(holder, now, schedule);
    return true;
  }
  Sequence* last = *running_.rbegin();
  if (!RunsBefore(requester, *last)) return false;
  Preempt(last, now, schedule);
  return true;
}

// Promises pages for one token to each running sequence in order; those that got them. One that
// did not waits with its pages while earlier ones go on, or, alone, while plans in flight may still
// evict. Who started without room for its prompt leaves those before it a page row each.
std::vector<Sequence*> Scheduler::ReservePages(Seconds now, Schedule* schedule) {
  std::vector<Sequence*> ready;
  int64_t earlier = 0;
  for (auto it = running_.begin(); it != running_.end(); ++earlier) {
    Sequence* sequence = *it;
    if (!sequence->is_schedulable()) {
      ++it;
      continue;
    }
    const int64_t need = ledger_.Between(sequence->computed, sequence->computed + 1);
    const int64_t left = sequence->by_chunks ? earlier * limits_.lists_per_slot : 0;
    while (need > 0 && pages_ < need + left) {
      if (!TakeFor(*sequence, now, schedule)) break;
    }
    ++it;  // only now: a victim may have been the next one
    if (need == 0 || pages_ >= need + left) {
      pages_ -= need;
      ready.push_back(sequence);
    } else if (running_.size() == 1 && !ledger_.in_flight()) {
      Remove(sequence);
      schedule->exhausted.push_back(sequence);
      break;
    }
  }
  return ready;
}

// One that started by chunks takes what it finds.
int64_t Scheduler::PromisedTo(const Sequence& sequence) const {
  return sequence.by_chunks ? 0 : ledger_.Between(sequence.computed, sequence.length());
}

// The pages of all its tokens, beside the demand of those that run. One that runs alone starts
// anyway: eviction may make a long prompt fit; and one that still has its pages.
bool Scheduler::HasRoom(const Sequence& next, const Demand& demand, int64_t pages) const {
  if (demand.running == 0 || next.slot >= 0) {
    return pages >= ledger_.Between(next.computed, next.computed + 1);
  }
  const int64_t whole = ledger_.Between(next.computed, next.length());
  return pages >= whole + demand.promised + demand.running * limits_.lists_per_slot;
}

// A page row, beside the demand of those that run, and more than it could not hold before. Eviction
// may make the rest fit; else it is preempted. One at a time, so that they do not preempt each
// other.
bool Scheduler::HasRoomForChunks(const Sequence& next, const Demand& demand) const {
  if (by_chunks_ != nullptr || next.remaining() <= kPageTokens) return false;
  const int64_t own = std::max(limits_.lists_per_slot, 2 * next.pages_lost);
  return pages_ >= own + demand.promised + demand.running * limits_.lists_per_slot;
}

// Finds a slot and pages, if need be those of sequences that do not run.
bool Scheduler::MakeRoom(Sequence* next, const Demand& demand, Seconds now, Schedule* schedule) {
  const bool needs_slot = next->slot < 0;
  const bool has_slot = !needs_slot || !free_slots_.empty();
  if (has_slot && HasRoom(*next, demand, pages_)) return true;
  if (has_slot && needs_slot && HasRoomForChunks(*next, demand)) return true;
  int64_t pages = pages_;
  for (const Sequence* holder : holders_) {
    if (holder != next) pages += ledger_.held(holder->slot);
  }
  if (!HasRoom(*next, demand, pages)) return false;
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
bool Scheduler::IsHopeless(const Sequence& next, Seconds now) const {
  if (next.started || next.request.deadline == kNever || running_.empty() || !times_.known()) {
    return false;
  }
  const Seconds first = times_.FirstToken(next.prompt_tokens);
  const Seconds whole = times_.Service(next.prompt_tokens, next.max_tokens);
  const bool could_finish = next.stats.arrival + whole <= next.request.deadline;
  return now + (could_finish ? std::max(first, 0.7 * whole) : first) > next.request.deadline;
}

// Gives `next` a seat if there is room. False: nothing has changed.
bool Scheduler::Start(Sequence* next, Seconds now, Demand* demand, Budget* budget,
                      Schedule* schedule) {
  if (!next->is_schedulable() || !MakeRoom(next, *demand, now, schedule)) return false;
  next->by_chunks = next->slot < 0 && pages_ < ledger_.Between(0, next->length());
  const int64_t need = ledger_.Between(next->computed, next->computed + 1);
  pages_ -= need;  // as ReservePages does
  const int64_t count = ChunkSize(*next, *budget);
  if (count == 0) {
    pages_ += need;
    next->by_chunks = false;
    return false;
  }
  waiting_.Start(next, now);
  if (next->slot < 0) {
    next->slot = free_slots_.back();
    free_slots_.pop_back();
  } else {
    holders_.erase(std::find(holders_.begin(), holders_.end(), next));
  }
  if (next->by_chunks) by_chunks_ = next;
  if (!next->preempted) next->place = places_++;
  next->state = SequenceState::kRunning;
  next->blocked_since = kNever;
  FOX_CHECK(running_.insert(next).second);
  Plan(next, count, now, budget, schedule);
  demand->promised += PromisedTo(*next);
  ++demand->running;
  return true;
}

// By turns; only those whose tokens all go into this plan, if `whole_prompts`. Who finds no room is
// passed over, and holds back the rest after a while.
void Scheduler::Admit(Seconds now, bool whole_prompts, Budget* budget, Schedule* schedule) {
  Demand demand;
  demand.running = running();
  int64_t slow = 0;
  for (const Sequence* sequence : running_) {
    demand.promised += PromisedTo(*sequence);
    if (sequence->reads_slowly()) ++slow;
  }
  const int64_t most_slow = std::max<int64_t>(1, max_running_ / kSlowShare);
  waiting_.BeginRound();
  int passed_over = 0;
  while (budget->prefill > 0 && demand.running < max_running_ && passed_over < kMostPassedOver) {
    Sequence* next = waiting_.Next(now);
    if (next == nullptr) return;
    if (next->paused()) {  // by what a plan in flight has brought
      waiting_.Remove(next);
      Pause(next, schedule);
      continue;
    }
    if (IsHopeless(*next, now)) {
      Remove(next);
      schedule->hopeless.push_back(next);
      continue;
    }
    // One that was preempted with a plan in flight comes back when that has been collected.
    const bool guest = next->reads_slowly();
    const bool seat = !guest || (budget->guests && (slow < most_slow || slow == demand.running));
    const bool ready = seat && next->is_schedulable() && (next->slot >= 0 || next->in_flight == 0);
    if (ready) {
      const bool overdue = now >= next->blocked_since + kOvertaking;
      const bool fits = !whole_prompts || overdue || next->remaining() <= budget->prefill;
      if (fits && Start(next, now, &demand, budget, schedule)) {
        if (guest) {
          ++slow;
          steps_without_guests_ = 0;
        }
        continue;
      }
      if (running_.empty() && next->slot >= 0 && holders_.size() == 1 && !ledger_.in_flight()) {
        Remove(next);
        schedule->exhausted.push_back(next);
        continue;
      }
      if (overdue) return;
      next->blocked_since = std::min(next->blocked_since, now);
    }
    waiting_.PassOver(next);
    if (seat) ++passed_over;
  }
}

// The first in order gets at least half of tokens and rows, then the shortest are done first. Where
// priorities keep who started earliest from being first, it is so once in kEarliestTurn steps: it
// must end some day.
void Scheduler::PlanPrefills(std::vector<Sequence*> prefills, Seconds now, Budget* budget,
                             Schedule* schedule) {
  if (prefills.empty()) return;
  auto chosen = prefills.begin();
  const auto earliest =
      std::min_element(prefills.begin(), prefills.end(),
                       [](const Sequence* a, const Sequence* b) { return a->place < b->place; });
  if ((*earliest)->steps_behind + 1 >= kEarliestTurn) chosen = earliest;
  for (Sequence* sequence : prefills) ++sequence->steps_behind;
  Sequence* first = *chosen;
  first->steps_behind = 0;
  prefills.erase(chosen);
  std::stable_sort(prefills.begin(), prefills.end(), [](const Sequence* a, const Sequence* b) {
    return a->remaining() < b->remaining();
  });
  const int64_t kept =
      std::min(first->remaining(), std::max<int64_t>(kPageTokens, budget->prefill / 2));
  const int64_t kept_rows = std::min(first->NumLogitRows(kept), (budget->logit_rows + 1) / 2);
  budget->prefill = std::max<int64_t>(0, budget->prefill - kept);
  budget->logit_rows -= kept_rows;
  for (Sequence* sequence : prefills) {
    Plan(sequence, ChunkSize(*sequence, *budget), now, budget, schedule);
  }
  budget->prefill = std::min(budget->prefill + kept, budget->tokens);
  budget->logit_rows += kept_rows;
  Plan(first, ChunkSize(*first, *budget), now, budget, schedule);
}

// The largest chunk within tokens, pages and logit rows, ending at a page end if it is not the
// last. The pages of its first token are promised already.
int64_t Scheduler::ChunkSize(const Sequence& sequence, const Budget& budget) const {
  const int64_t begin = sequence.computed;
  int64_t count = std::min({sequence.remaining(), budget.tokens, budget.prefill});
  int64_t pages = pages_;
  if (sequence.by_chunks) {
    // What others were promised stays theirs.
    for (const Sequence* other : running_) {
      if (other != &sequence) pages -= PromisedTo(*other) + limits_.lists_per_slot;
    }
  }
  const int64_t page_rows =
      PagesFor(begin + 1) + std::max<int64_t>(0, pages) / limits_.lists_per_slot;
  count = std::min(count, page_rows * kPageTokens - begin);
  // A token wants at most one row: leaving out as many tokens as rows are too many never cuts too
  // deep, and may have to be repeated where tokens want none.
  for (;;) {
    const int64_t excess = sequence.NumLogitRows(count) - budget.logit_rows;
    if (excess <= 0) break;
    count -= excess;
  }
  if (count < sequence.remaining()) {
    const int64_t aligned = (begin + count) / kPageTokens * kPageTokens - begin;
    if (aligned > 0) count = aligned;
  }
  return count;
}

void Scheduler::Plan(Sequence* sequence, int64_t count, Seconds now, Budget* budget,
                     Schedule* schedule) {
  if (count == 0) return;
  const int64_t begin = sequence->computed;
  PlannedSequence planned;
  planned.id = sequence->request.id;
  planned.slot = sequence->slot;
  planned.position = begin;
  planned.token_ids = sequence->NextTokens(count);
  planned.logit_rows = sequence->LogitRowIndices(count);
  planned.log_tolerance = sequence->log_tolerance;
  // Rows of prompt log-probabilities are wanted on the host, so it samples from the last one too.
  const bool samples = count == sequence->remaining() && sequence->samples();
  if (limits_.samples_on_device && samples && planned.logit_rows.size() == 1) {
    planned.sample = sequence->NextSampleRow();
    if (planned.sample && planned.sample->logits_processor.on && !sequence->has_penalty_state) {
      schedule->plan.penalty_state.push_back(sequence->PenaltyState());
      sequence->has_penalty_state = true;
    }
  }
  budget->tokens -= count;
  if (sequence->remaining() > 1) budget->prefill -= count;
  budget->prefill = std::min(budget->prefill, budget->tokens);
  budget->logit_rows -= static_cast<int64_t>(planned.logit_rows.size());
  const int64_t pages = ledger_.Between(begin + 1, begin + count);
  FOX_CHECK(pages == 0 || pages_ >= pages);
  pages_ -= pages;
  sequence->computed += count;
  ++sequence->in_flight;
  if (sequence->by_chunks && sequence->remaining() == 0) {
    sequence->by_chunks = false;
    by_chunks_ = nullptr;
  }
  if (planned.sample) {
    ++sequence->pending;
    sequence->UpdatePause(now);
  }
  schedule->plan.sequences.push_back(std::move(planned));
  schedule->sequences.push_back(sequence);
}

}  // namespace fox
