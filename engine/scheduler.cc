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
Scheduler::Scheduler(const ExecutorLimits& limits)
    : limits_(limits),
      max_running_(std::min({static_cast<int64_t>(limits.max_num_seqs),
                             limits.max_num_batched_tokens, limits.max_logit_rows})),
      ledger_(limits) {
  FOX_CHECK(max_running_ > 0 && limits.lists_per_slot > 0 && limits.num_pages >= 0);
  for (int32_t slot = limits.max_num_seqs - 1; slot >= 0; --slot) free_slots_.push_back(slot);
}

void Scheduler::Add(Sequence* sequence) {
  FOX_CHECK(sequence->slot < 0 && sequence->computed == 0 && !sequence->tokens.empty());
  FOX_CHECK(waiting_.insert(sequence).second);
}

void Scheduler::Remove(Sequence* sequence) {
  if (sequence->slot < 0) {
    FOX_CHECK(waiting_.erase(sequence) == 1);
    return;
  }
  FOX_CHECK(running_.erase(sequence) == 1);
  ReleaseSlot(sequence);
}

Schedule Scheduler::Next(Seconds now) {
  Schedule schedule;
  int64_t free = ledger_.free();
  for (const int32_t slot : release_slots_) free += ledger_.held(slot);
  // With no slot in use everything is free once this plan has released what it must, however late
  // the count of free pages is.
  pages_ = running_.empty() ? limits_.num_pages : std::min(limits_.num_pages, free);
  Budget budget{limits_.max_num_batched_tokens, limits_.max_logit_rows};
  const std::vector<Sequence*> ready = ReservePages(&schedule);
  std::vector<Sequence*> prefills;
  for (Sequence* sequence : ready) {
    if (sequence->remaining() > 1) {
      prefills.push_back(sequence);
    } else {
      Plan(sequence, 1, now, &budget, &schedule);
    }
  }
  for (Sequence* sequence : prefills) {
    Plan(sequence, ChunkSize(*sequence, budget), now, &budget, &schedule);
  }
  Admit(now, &budget, &schedule);
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
  sequence->ReleaseSlot();
}

void Scheduler::Preempt(Sequence* sequence, Schedule* schedule) {
  FOX_CHECK(running_.erase(sequence) == 1);
  ReleaseSlot(sequence);
  ++sequence->stats.preemptions;
  ++schedule->preemptions;
  FOX_CHECK(waiting_.insert(sequence).second);
}

// Who loses its pages to `requester`: a paused sequence, else the last one behind `requester`.
Sequence* Scheduler::SelectVictim(const Sequence& requester) const {
  for (auto last = running_.rbegin(); last != running_.rend(); ++last) {
    if ((*last)->paused()) return *last;
  }
  Sequence* last = *running_.rbegin();
  return RunsBefore(requester, *last) ? last : nullptr;
}

// Promises pages for one token to each running sequence in order; those that got them. One that
// did not waits with its pages while earlier ones go on, or, alone, while plans in flight may still
// evict.
std::vector<Sequence*> Scheduler::ReservePages(Schedule* schedule) {
  std::vector<Sequence*> ready;
  for (auto it = running_.begin(); it != running_.end();) {
    Sequence* sequence = *it;
    if (!sequence->is_schedulable()) {
      ++it;
      continue;
    }
    const int64_t need = ledger_.Between(sequence->computed, sequence->computed + 1);
    while (need > 0 && pages_ < need) {
      Sequence* victim = SelectVictim(*sequence);
      if (victim == nullptr) break;
      Preempt(victim, schedule);
    }
    ++it;  // only now: a victim may have been the next one
    if (need == 0 || pages_ >= need) {
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

// Whether `next` may start: the pages of all its tokens, beside the demand of those that run. One
// that runs alone starts anyway: eviction may make a long prompt fit.
bool Scheduler::Fits(const Sequence& next, const Demand& demand, int64_t pages) const {
  if (demand.running == 0) return pages >= limits_.lists_per_slot;
  if (demand.running >= max_running_) return false;
  const int64_t whole = ledger_.Between(0, next.length());
  return pages >= whole + demand.promised + demand.running * limits_.lists_per_slot;
}

// Preempts sequences that have been paused for long, the last first, if that lets `next` start.
bool Scheduler::MakeRoom(const Sequence& next, Seconds now, Demand* demand, Schedule* schedule) {
  std::vector<Sequence*> victims;
  Demand after = *demand;
  int64_t pages = pages_;
  for (auto last = running_.rbegin(); last != running_.rend() && !Fits(next, after, pages);
       ++last) {
    Sequence* victim = *last;
    if (!victim->paused() || now < victim->paused_since + kPauseGrace) continue;
    victims.push_back(victim);
    pages += ledger_.held(victim->slot);
    after.promised -= ledger_.Between(victim->computed, victim->length());
    --after.running;
  }
  if (!Fits(next, after, pages)) return false;
  for (Sequence* victim : victims) Preempt(victim, schedule);
  *demand = after;
  return true;
}

void Scheduler::Admit(Seconds now, Budget* budget, Schedule* schedule) {
  if (waiting_.empty() || budget->tokens == 0) return;
  Demand demand;
  demand.running = static_cast<int64_t>(running_.size());
  for (const Sequence* sequence : running_) {
    demand.promised += ledger_.Between(sequence->computed, sequence->length());
  }
  for (auto it = waiting_.begin(); it != waiting_.end();) {
    Sequence* next = *it;
    if (next->paused()) {
      ++it;
      continue;
    }
    // In order: who does not fit holds back the rest, else a long prompt would never start. One
    // that was preempted with a plan in flight comes back when that has been collected.
    if (budget->tokens == 0 || next->in_flight > 0) break;
    if (!MakeRoom(*next, now, &demand, schedule)) break;
    pages_ -= limits_.lists_per_slot;  // the first page row, as ReservePages does
    const int64_t count = ChunkSize(*next, *budget);
    if (count == 0) {
      pages_ += limits_.lists_per_slot;
      break;
    }
    it = waiting_.erase(it);
    next->slot = free_slots_.back();
    free_slots_.pop_back();
    FOX_CHECK(running_.insert(next).second);
    Plan(next, count, now, budget, schedule);
    demand.promised += ledger_.Between(next->computed, next->length());
    ++demand.running;
  }
}

// The largest chunk within tokens, pages and logit rows, ending at a page end if it is not the
// last. The pages of its first token are promised already.
int64_t Scheduler::ChunkSize(const Sequence& sequence, const Budget& budget) const {
  const int64_t begin = sequence.computed;
  int64_t count = std::min(sequence.remaining(), budget.tokens);
  const int64_t page_rows =
      PagesFor(begin + 1) + std::max<int64_t>(0, pages_) / limits_.lists_per_slot;
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
  budget->logit_rows -= static_cast<int64_t>(planned.logit_rows.size());
  const int64_t pages = ledger_.Between(begin + 1, begin + count);
  FOX_CHECK(pages == 0 || pages_ >= pages);
  pages_ -= pages;
  sequence->computed += count;
  ++sequence->in_flight;
  if (planned.sample) {
    ++sequence->pending;
    // From now on, so that nobody admitted later takes it out of this very plan.
    if (sequence->paused()) sequence->paused_since = now;
  }
  schedule->plan.sequences.push_back(std::move(planned));
  schedule->sequences.push_back(sequence);
}

}  // namespace fox
