// Scheduler: states and slots of sequences, chunks of prompts. Read scheduler.h first.
#include "engine/schedule/scheduler.h"

#include <map>
#include <set>

#include "kernels/core/check.h"
#include "kernels/paging/paged_kv.h"

namespace fox {

// As many sequences may run as can all decode in one step, or all but one beside a chunk.
Scheduler::Scheduler(const ExecutorLimits& limits, const ServiceTimes& times,
                     const EngineOptions& options, SnapshotStore* store)
    : limits_(limits),
      times_(times),
      options_(options),
      log_tolerance_(options.acp == AcpMode::kOff ? kNoMass : double{options.log_tolerance}),
      max_running_(std::min({static_cast<int64_t>(limits.max_num_seqs),
                             limits.max_num_batched_tokens - limits.chunks.min_room() + 1,
                             limits.max_logit_rows - limits.chunks.min_room() + 1})),
      ledger_(limits),
      prefixes_(limits, options, ledger_, times, store),
      forecast_(limits.lists_per_slot) {
  FOX_CHECK(max_running_ > 0 && limits.lists_per_slot > 0 && limits.num_pages >= 0);
  FOX_CHECK(limits.chunks.unit > 0 && limits.chunks.unit % kPageTokens == 0);
  for (int32_t slot = 0; slot < limits.slots(); ++slot) free_slots_.insert(slot);
}

void Scheduler::Check() const {
  std::set<int32_t> used;
  const auto check = [&](const Sequence* sequence) {
    sequence->Check();
    FOX_CHECK(sequence->slot < limits_.slots() && used.insert(sequence->slot).second);
    FOX_CHECK(free_slots_.count(sequence->slot) == 0);
  };
  for (const Sequence* sequence : running_) {
    FOX_CHECK(sequence->state == SequenceState::kRunning);
    check(sequence);
  }
  for (const Sequence* sequence : slot_holders_) {
    FOX_CHECK(sequence->slot >= 0 && sequence->state != SequenceState::kRunning);
    check(sequence);
  }
  FOX_CHECK(free_slots_.size() + used.size() == static_cast<size_t>(limits_.slots()));
  FOX_CHECK(running() <= max_running_ && paused_ >= 0);
  FOX_CHECK(rescued_ == nullptr || rescued_->rescued);
  waiting_.Check();
  ledger_.Check();
  prefixes_.Check();
}

void Scheduler::Add(Sequence* sequence, Seconds now) {
  FOX_CHECK(sequence->state == SequenceState::kNone && sequence->slot < 0);
  FOX_CHECK(sequence->computed == 0 && !sequence->tokens.empty());
  sequence->chunks = limits_.chunks;
  sequence->without_token_since = now;
  sequence->place = places_++;
  sequence->state = SequenceState::kWaiting;
  waiting_.Enter(*sequence);
  waiting_.Add(sequence, now);
}

void Scheduler::Remove(Sequence* sequence, bool keep) {
  FOX_CHECK(sequence->state != SequenceState::kNone);
  if (sequence->state == SequenceState::kWaiting) waiting_.Remove(sequence);
  if (sequence->state == SequenceState::kRunning) StopRunning(sequence);
  if (sequence->state == SequenceState::kPaused) --paused_;
  if (sequence == rescued_) rescued_ = nullptr;
  if (sequence->slot >= 0) ReleaseSlot(sequence, keep);
  sequence->state = SequenceState::kNone;
  waiting_.Leave(*sequence);
}

void Scheduler::End(Sequence* sequence, absl::Status status, Schedule* schedule) {
  Remove(sequence);
  schedule->ended.emplace_back(sequence, std::move(status));
}

void Scheduler::Resume(Sequence* sequence, Seconds now) {
  if (sequence->state != SequenceState::kPaused) return;
  --paused_;
  sequence->without_token_since = now;
  sequence->state = SequenceState::kWaiting;
  if (sequence->slot < 0) sequence->place = places_++;
  waiting_.Add(sequence, now);
}

Work Scheduler::RunningWork() const {
  Work work;
  for (const Sequence* sequence : running_) {
    const double left =
        std::max(ExpectedLeft(*sequence), 1.0) + static_cast<double>(sequence->replays_left());
    work.Add({static_cast<double>(sequence->prefill_left()), left, 1});
  }
  return work;
}

Schedule Scheduler::Next(Seconds now) {
  Schedule schedule;
  prefixes_.BeginPlan(now);
  for (Sequence* sequence : running_) prefixes_.Follow(sequence);
  PauseFullReaders(&schedule);
  RescueOne(now);
  LimitBestEffort(now);
  YieldSlot(now);
  int64_t free = ledger_.free() + prefixes_.dropped_pages();
  for (const int32_t slot : release_slots_) free += ledger_.held(slot);
  // If no slot is in use, all pages are free, however late the count of free pages is.
  const bool unused = running_.empty() && slot_holders_.empty() && prefixes_.empty();
  pages_ = unused ? limits_.num_pages : std::min(limits_.num_pages, free);
  std::vector<Sequence*> ready = ReservePages(now, &schedule);
  if (ready.empty() && !running_.empty() && !ledger_.in_flight()) {
    (*running_.begin())->blocked_since = -kNever;  // nothing moves that it could wait for
    ready = ReservePages(now, &schedule);
  }
  pages_ -= prefixes_.Land(pages_ - running() * limits_.lists_per_slot);
  Budget budget{limits_.max_num_batched_tokens, limits_.max_num_batched_tokens,
                limits_.max_logit_rows};
  const bool alone = std::all_of(ready.begin(), ready.end(),
                                 [](const Sequence* sequence) { return IsBestEffort(*sequence); });
  budget.best_effort = alone || ++steps_without_best_effort_ >= kSlowShare;
  masks_.Begin(running_, ready);
  std::vector<Sequence*> prefills, masked;
  const auto waits = [&](const Sequence& sequence) {
    return masks_.Waits(sequence) && !(schedule.sequences.empty() && prefills.empty());
  };
  for (Sequence* sequence : ready) {
    if (IsBestEffort(*sequence)) {
      if (!budget.best_effort) continue;
      steps_without_best_effort_ = 0;
    }
    if (sequence->prefill_left() > 0) {
      if (!waits(*sequence)) prefills.push_back(sequence);
    } else if (sequence->mask_steps > 0) {
      masked.push_back(sequence);
    } else {
      Plan(sequence, 1, now, &budget, &schedule);
    }
  }
  std::sort(masked.begin(), masked.end(),
            [](const Sequence* a, const Sequence* b) { return IsLongerWithoutToken(*a, *b); });
  for (Sequence* sequence : masked) {
    if (!waits(*sequence)) Plan(sequence, 1, now, &budget, &schedule);
  }
  // A sequence that yielded its running slot may have it back in this plan.
  const auto returns =
      std::count_if(slot_holders_.begin(), slot_holders_.end(), [](const Sequence* holder) {
        return holder->state == SequenceState::kWaiting && holder->prefill_left() == 0;
      });
  budget.prefill =
      MaxPrefill(budget, static_cast<int64_t>(schedule.sequences.size()), int64_t{returns});
  if (!prefills.empty()) PlanPrefills(std::move(prefills), now, &budget, &schedule);
  Admit(now, /*whole_prompts=*/false, &budget, &schedule);
  FOX_CHECK(budget.tokens >= 0 && budget.logit_rows >= 0);
  PlanDrafts(budget, &schedule);
  schedule.plan.release_slots = std::exchange(release_slots_, {});
  if (schedule.plan.sequences.empty() || prefixes_.saves_all()) prefixes_.SaveOne();
  prefixes_.FillPlan(&schedule.plan);
  if (!schedule.plan.empty()) ledger_.Submit(schedule.plan);
#ifndef NDEBUG
  Check();
#endif
  return schedule;
}

void Scheduler::Collect(const StepPlan& plan, const StepResult& result) {
  FOX_CHECK(result.stats.size() == plan.sequences.size());
  ledger_.Collect(result);
  prefixes_.Collected(plan, result);
  for (size_t i = 0; i < plan.sequences.size(); ++i) {
    const PlannedSequence& planned = plan.sequences[i];
    if (planned.log_tolerance != log_tolerance_) continue;
    const int64_t end = planned.position + static_cast<int64_t>(planned.token_ids.size());
    forecast_.Observe(planned.position, end, result.stats[i].live_pages());
  }
}

void Scheduler::ReleaseSlot(Sequence* sequence, bool keep) {
  prefixes_.Leave(sequence, keep);
  release_slots_.push_back(sequence->slot);
  pages_ += ledger_.held(sequence->slot);
  FOX_CHECK(free_slots_.insert(sequence->slot).second);
  slot_holders_.erase(std::remove(slot_holders_.begin(), slot_holders_.end(), sequence),
                      slot_holders_.end());
  sequence->ReleaseSlot();
}

void Scheduler::StopRunning(Sequence* sequence) {
  FOX_CHECK(running_.erase(sequence) == 1);
  waiting_.Stop(sequence);
}

void Scheduler::StopButKeepSlot(Sequence* sequence) {
  StopRunning(sequence);
  slot_holders_.push_back(sequence);
  prefixes_.Unclaim(sequence);
  sequence->preempted = false;
  sequence->blocked_since = kNever;
}

void Scheduler::Pause(Sequence* sequence, Schedule* schedule) {
  if (sequence->rescued) SetRescued(sequence, false);
  sequence->state = SequenceState::kPaused;
  sequence->preempted = false;
  ++paused_;
  schedule->paused.push_back(sequence);
}

void Scheduler::PauseFullReaders(Schedule* schedule) {
  for (auto it = running_.begin(); it != running_.end();) {
    Sequence* sequence = *it++;
    if (!sequence->paused()) continue;
    StopButKeepSlot(sequence);
    Pause(sequence, schedule);
  }
}

void Scheduler::Yield(Sequence* sequence, Seconds now) {
  StopButKeepSlot(sequence);
  sequence->state = SequenceState::kWaiting;
  waiting_.Add(sequence, now);
}

void Scheduler::SetRescued(Sequence* sequence, bool rescued) {
  const bool runs = running_.erase(sequence) > 0;
  sequence->rescued = rescued;
  if (runs) running_.insert(sequence);
  rescued_ = rescued ? sequence : nullptr;
}

void Scheduler::RescueOne(Seconds now) {
  if (rescued_ != nullptr && rescued_->without_token_since >= rescued_at_)
    SetRescued(rescued_, false);
  if (rescued_ != nullptr || now < rescued_at_ + kStarvation) return;
  Sequence* longest = waiting_.LongestWithoutToken();
  for (Sequence* sequence : running_) {
    if (!sequence->is_schedulable()) continue;
    if (longest == nullptr || IsLongerWithoutToken(*sequence, *longest)) longest = sequence;
  }
  if (longest == nullptr || now < longest->without_token_since + kStarvation) return;
  rescued_at_ = now;
  SetRescued(longest, true);
}

// Beside others, the newest best-effort sequences give their running slots up until only
// MaxBestEffort of them run.
void Scheduler::LimitBestEffort(Seconds now) {
  std::map<int64_t, Sequence*> slow;  // by arrival
  for (Sequence* sequence : running_) {
    if (IsBestEffort(*sequence)) slow.emplace(sequence->arrival, sequence);
  }
  if (slow.size() == running_.size()) return;
  for (; static_cast<int64_t>(slow.size()) > MaxBestEffort(max_running_);
       slow.erase(--slow.end())) {
    Yield(slow.rbegin()->second, now);
  }
}

// A request that has found no pages is due no slot, because the slot would stay empty.
void Scheduler::YieldSlot(Seconds now) {
  if (running() < max_running_) return;
  waiting_.BeginRound();
  for (Sequence* next = waiting_.Due(now); next != nullptr; next = waiting_.Due(now)) {
    const bool blocked = next->blocked_since != kNever && !next->rescued;
    if (!blocked && MayStart(*next, 0, 0, max_running_, true) && !prefixes_.Match(next)) {
      Sequence* last = SlotVictim(running_, *next, now);
      if (last != nullptr) Yield(last, now);
      return;
    }
    waiting_.PassOver(next);
  }
}

bool Scheduler::Start(Sequence* next, Seconds now, double* demand, Budget* budget,
                      Schedule* schedule) {
  const bool begins = next->slot < 0;
  if (begins) next->computed = prefixes_.Lock(*next);
  // If this step has no room for a chunk of `next`, no sequence gives up pages for it.
  const bool has_chunk = ChunkWithin(*next, *budget, next->max_chunk()) > 0;
  const bool has_room = has_chunk && MakeRoom(next, *demand, now, schedule);
  if (!has_room) {
    // The snapshot that it would start from may itself fill the pool.
    if (has_chunk && running_.empty() && begins && next->computed > 0) prefixes_.Flush();
    if (begins) next->computed = 0;
    return false;
  }
  pages_ -= PagesToGoOn(*next);  // as ReservePages does
  const int64_t count = ChunkSize(*next, *budget);
  FOX_CHECK(count > 0);
  // A sequence that waited long goes behind all that started meanwhile, unless it ran before.
  const bool anew = !next->preempted && !next->rescued &&
                    (next->queue().running_since == kNever || next->reads_slowly());
  waiting_.Start(next, now);
  if (begins) {
    next->slot = *free_slots_.begin();
    free_slots_.erase(next->slot);
    prefixes_.Start(next);
  } else {
    slot_holders_.erase(std::find(slot_holders_.begin(), slot_holders_.end(), next));
  }
  if (anew) next->place = places_++;
  next->state = SequenceState::kRunning;
  next->blocked_since = kNever;
  FOX_CHECK(running_.insert(next).second);
  Plan(next, count, now, budget, schedule);
  *demand += DemandOf(*next);
  return true;
}

// Starts `next`, or ends it because the pool can never hold it. False: there is no room, or
// (`whole_prompts`) this plan has no room for its whole prompt.
bool Scheduler::TryToStart(Sequence* next, bool whole_prompts, Seconds now, double* demand,
                           Budget* budget, Schedule* schedule) {
  const int64_t left = next->max_chunk() - (next->slot < 0 ? next->prefix().found : 0);
  const bool fits =
      !whole_prompts || next->rescued || left <= budget->prefill || waiting_.IsDue(*next, now);
  if (fits && Start(next, now, demand, budget, schedule)) return true;
  if (IsTooLarge(*next)) {
    End(next, absl::OutOfRangeError(kTooLarge), schedule);
    return true;
  }
  if (fits) next->blocked_since = std::min(next->blocked_since, now);
  return false;
}

// Starts waiting sequences. `whole_prompts`: only sequences whose prompts fit into this plan whole.
void Scheduler::Admit(Seconds now, bool whole_prompts, Budget* budget, Schedule* schedule) {
  if (waiting_.size() == 0) return;
  double demand = 0;
  int64_t slow = 0;
  for (const Sequence* sequence : running_) {
    demand += DemandOf(*sequence);
    if (IsBestEffort(*sequence)) ++slow;
  }
  waiting_.BeginRound();
  int passed_over = 0;
  Sequence* first = rescued_;
  if (first != nullptr && first->state != SequenceState::kWaiting) first = nullptr;
  while (budget->prefill > 0 && running() < max_running_ && passed_over < kMaxPassedOver) {
    Sequence* next = first != nullptr ? std::exchange(first, nullptr) : waiting_.Next(now);
    if (next == nullptr) return;
    if (next->paused()) {  // by tokens of a plan in flight
      waiting_.Remove(next);
      Pause(next, schedule);
      continue;
    }
    if (!running_.empty() && MissesDeadline(*next, times_, now)) {
      End(next, absl::DeadlineExceededError("waited so long that the deadline cannot be met"),
          schedule);
      continue;
    }
    if (masks_.Waits(*next)) {
      waiting_.PassOverClient(next);
      continue;
    }
    const bool best_effort = IsBestEffort(*next);
    const bool may_start = MayStart(*next, running(), slow, max_running_, budget->best_effort);
    const bool waits = may_start && prefixes_.Match(next);
    if (may_start && (!waits || next->rescued)) {
      if (TryToStart(next, whole_prompts, now, &demand, budget, schedule)) {
        if (!best_effort || next->state != SequenceState::kRunning) continue;
        ++slow;
        steps_without_best_effort_ = 0;
        continue;
      }
      if (next->rescued) return;
      ++passed_over;
    }
    waiting_.PassOver(next);
  }
}

// `decodes` are planned, and `returns` more may be.
int64_t Scheduler::MaxPrefill(const Budget& budget, int64_t decodes, int64_t returns) const {
  int64_t most = budget.tokens;
  if (options_.max_step_seconds > 0) {
    most = std::min(most, times_.PrefillTokens(options_.max_step_seconds, decodes + returns));
  }
  if (limits_.prefill_tokens_per_decode > 0 && decodes + returns > 0) {
    most = std::min(most, limits_.prefill_tokens_per_decode * std::max(decodes, kLeastDecodes));
  }
  return std::min(budget.tokens, std::max({most, int64_t{kPageTokens}, limits_.chunks.min_room()}));
}

// Drafts take the rows that are left. The tokens in which a step looks for drafts are bounded.
void Scheduler::PlanDrafts(const Budget& budget, Schedule* schedule) const {
  std::vector<PlannedSequence>& planned = schedule->plan.sequences;
  const auto seqs = static_cast<int64_t>(planned.size());
  const int64_t most = std::min<int64_t>(options_.speculation.tokens, limits_.max_drafts);
  int64_t room = std::min({budget.tokens, budget.logit_rows, limits_.max_num_seqs - seqs});
  for (size_t i = 0; most > 0 && room > 0 && i < planned.size(); ++i) {
    if (planned[i].token_ids.size() > 1) break;
    Sequence* sequence = schedule->sequences[i];
    const std::vector<int32_t> drafts = sequence->Drafts(planned[i], options_.speculation,
                                                         std::min(room, most), kDraftWindow / seqs);
    for (const int32_t token : drafts) {
      PlannedSequence draft = planned[i++];
      draft.token_ids = {token};
      draft.draft = true;
      ++draft.position;
      if (draft.sample) ++draft.sample->position;
      const auto at = static_cast<std::ptrdiff_t>(i);
      planned.insert(planned.begin() + at, std::move(draft));
      schedule->sequences.insert(schedule->sequences.begin() + at, sequence);
      ++sequence->in_flight;
    }
    const auto count = static_cast<int64_t>(drafts.size());
    sequence->drafts = count;
    if (count > 0) sequence->draft_record.OnDrafted(count);
    room -= count;
  }
}

// Half of the budget is kept for the first prompt in order. The other half goes to short prompts
// from the queue, then to the shortest of the running prompts, and the rest again to the first.
void Scheduler::PlanPrefills(std::vector<Sequence*> prefills, Seconds now, Budget* budget,
                             Schedule* schedule) {
  Sequence* first = prefills.front();
  const int64_t least = limits_.chunks.min_room();
  const int64_t kept = std::min({first->prefill_left(), budget->prefill,
                                 std::max({int64_t{kPageTokens}, least, budget->prefill / 2})});
  const int64_t kept_rows = std::min({first->NumLogitRows(kept, limits_), budget->logit_rows,
                                      std::max(least, (budget->logit_rows + 1) / 2)});
  budget->Add(-kept, -kept_rows);
  Admit(now, /*whole_prompts=*/true, budget, schedule);
  std::stable_sort(prefills.begin() + 1, prefills.end(), [](const Sequence* a, const Sequence* b) {
    return a->prefill_left() < b->prefill_left();
  });
  for (size_t i = 1; i < prefills.size(); ++i) {
    Plan(prefills[i], ChunkSize(*prefills[i], *budget), now, budget, schedule);
  }
  budget->Add(kept, kept_rows);
  Plan(first, ChunkSize(*first, *budget), now, budget, schedule);
}

// The longest chunk of at most `max_tokens` that the budget has room for; 0: there is none.
int64_t Scheduler::ChunkWithin(const Sequence& sequence, const Budget& budget,
                               int64_t max_tokens) const {
  int64_t count = std::min({sequence.max_chunk(), budget.tokens, budget.prefill});
  count = std::min(prefixes_.CutChunk(sequence, count), max_tokens);
  // A token needs at most one row. So leaving out one token for each row too many never cuts too
  // deep; it is repeated, because some of these tokens may need no row.
  for (;;) {
    const int64_t excess = sequence.NumLogitRows(count, limits_) - budget.logit_rows;
    if (excess <= 0) break;
    count -= excess;
  }
  return sequence.ChunkWithin(count);
}

// The chunk that there is budget and pages for. Pages of min_chunk() are promised already.
int64_t Scheduler::ChunkSize(const Sequence& sequence, const Budget& budget) const {
  const int64_t pages = std::max<int64_t>(0, pages_ - RoomForOthers(sequence));
  const int64_t page_rows =
      PagesFor(sequence.computed + sequence.min_chunk()) + pages / limits_.lists_per_slot;
  return ChunkWithin(sequence, budget, page_rows * kPageTokens - sequence.computed);
}

void Scheduler::Plan(Sequence* sequence, int64_t count, Seconds now, Budget* budget,
                     Schedule* schedule) {
  if (count == 0) return;
  FOX_CHECK(0 < count && count <= sequence->remaining() && sequence->slot >= 0);
  FOX_CHECK(!sequence->chunks.fixed || sequence->ChunkWithin(count) == count);
  const int64_t begin = sequence->computed, promised = begin + sequence->min_chunk();
  StepPlan& plan = schedule->plan;
  PlannedSequence planned = sequence->Feed(count, limits_);
  if (planned.sample && planned.sample->logits_processor.on && !sequence->has_penalty_state) {
    FOX_CHECK(sequence->pending == 0);
    plan.penalty_state.push_back(
        {sequence->slot, PenaltyEntriesOf(sequence->request, sequence->stop, sequence->counts,
                                          sequence->produced())});
    sequence->has_penalty_state = true;
  }
  const int64_t pages = ledger_.Between(promised, begin + count);
  FOX_CHECK(pages == 0 || pages_ >= pages);
  pages_ -= pages;
  budget->tokens -= count;
  if (sequence->prefill_left() > 0) budget->prefill -= count;
  budget->prefill = std::min(budget->prefill, budget->tokens);
  budget->logit_rows -= static_cast<int64_t>(planned.logit_rows.size());
  if (count == sequence->remaining()) sequence->without_token_since = now;
  if (count == sequence->remaining()) masks_.Take(*sequence);
  sequence->computed += count;
  ++sequence->in_flight;
  if (planned.sample) {
    ++sequence->pending;
    sequence->UpdatePause(now);
  }
  size_t at = plan.sequences.size();
  while (count == 1 && at > 0 && plan.sequences[at - 1].token_ids.size() > 1) --at;
  const auto offset = static_cast<std::ptrdiff_t>(at);
  plan.sequences.insert(plan.sequences.begin() + offset, std::move(planned));
  schedule->sequences.insert(schedule->sequences.begin() + offset, sequence);
}

}  // namespace fox
