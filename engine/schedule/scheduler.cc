// Scheduling in four passes: promise every running sequence the pages of its next token, plan
// decodes, plan prefill chunks, admit from the queue. Read scheduler.h first.
#include "engine/schedule/scheduler.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "kernels/core/check.h"
#include "kernels/paged_kv.h"

namespace fox {
namespace {

// Keeps the order otherwise.
void PutDecodesFirst(Schedule* schedule) {
  std::vector<PlannedSequence> chunks;
  std::vector<Sequence*> in_chunks;
  size_t decodes = 0;
  for (size_t i = 0; i < schedule->sequences.size(); ++i) {
    PlannedSequence& planned = schedule->plan.sequences[i];
    if (planned.token_ids.size() > 1) {
      chunks.push_back(std::move(planned));
      in_chunks.push_back(schedule->sequences[i]);
    } else {
      if (decodes < i) schedule->plan.sequences[decodes] = std::move(planned);
      schedule->sequences[decodes++] = schedule->sequences[i];
    }
  }
  const auto end = static_cast<std::ptrdiff_t>(decodes);
  std::move(chunks.begin(), chunks.end(), schedule->plan.sequences.begin() + end);
  std::copy(in_chunks.begin(), in_chunks.end(), schedule->sequences.begin() + end);
}

}  // namespace

// At most as many sequences run as can all decode in one step, and all but one beside a chunk.
Scheduler::Scheduler(const ExecutorLimits& limits, const ServiceTimes& times,
                     const EngineOptions& options)
    : limits_(limits),
      times_(times),
      max_step_seconds_(options.max_step_seconds),
      admission_(options.kv_admission),
      log_tolerance_(options.acp == AcpMode::kOff ? kNoMass : double{options.log_tolerance}),
      max_running_(std::min({static_cast<int64_t>(limits.max_num_seqs),
                             limits.max_num_batched_tokens - limits.least_prefill() + 1,
                             limits.max_logit_rows - limits.least_prefill() + 1})),
      ledger_(limits),
      prefixes_(limits, options, ledger_),
      swap_space_(limits.swap_bytes),
      forecast_(limits.lists_per_slot, limits.slots()),
      taken_(static_cast<size_t>(limits.slots()), 0) {
  FOX_CHECK(max_running_ > 0 && limits.lists_per_slot > 0 && limits.num_pages >= 0);
  FOX_CHECK(limits.chunk_multiple == 1 || limits.chunk_multiple % kPageTokens == 0);
  for (int32_t slot = limits.slots() - 1; slot >= 0; --slot) free_slots_.push_back(slot);
}

void Scheduler::Add(Sequence* sequence, Seconds now) {
  FOX_CHECK(sequence->state == SequenceState::kNone && sequence->slot < 0);
  FOX_CHECK(sequence->computed == 0 && !sequence->tokens.empty());
  sequence->chunk_multiple = limits_.chunk_multiple;
  waiting_.Enter(*sequence);
  sequence->place = places_++;
  sequence->state = SequenceState::kWaiting;
  waiting_.Add(sequence, now);
}

void Scheduler::Remove(Sequence* sequence, bool keep) {
  switch (sequence->state) {
    case SequenceState::kWaiting:
      waiting_.Remove(sequence);
      break;
    case SequenceState::kRunning:
      FOX_CHECK(running_.erase(sequence) == 1);
      waiting_.Stop(sequence);
      break;
    case SequenceState::kPaused:
      --paused_;
      break;
    default:
      FOX_CHECK(false);
  }
  if (sequence->slot >= 0) ReleaseSlot(sequence, keep);
  if (sequence->swapped) {
    ForgetSwapped(sequence);
    swap_space_.Give(sequence->swapped->range);
    sequence->swapped.reset();
  }
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
    double left =
        times_.ExpectedTokens(sequence->max_tokens) - static_cast<double>(sequence->produced());
    // A reader that has not taken half of what there is has yet to show that it takes more.
    const int64_t window = sequence->reader.window();
    const int64_t ahead = sequence->produced() - sequence->reader.acknowledged();
    if (window > 0 && ahead >= sequence->reader.acknowledged()) {
      left = std::min(left, static_cast<double>(window - ahead));
    }
    left = std::max(left, 1.0) + static_cast<double>(sequence->replays_left());
    work.push_back({static_cast<double>(sequence->prefill_left()), left, 1});
  }
  return work;
}

// A sequence that decodes next, or has a prompt of one token, makes no step shorter: it is one
// step of its stream.
int64_t Scheduler::MostPrefill(const Budget& budget, int64_t decodes) const {
  int64_t most = budget.tokens;
  if (max_step_seconds_ > 0) {
    most = std::min(most, times_.PrefillTokens(max_step_seconds_, decodes));
  }
  if (limits_.max_mixed_tokens > 0 && decodes > 0) most = std::min(most, limits_.max_mixed_tokens);
  return std::min(budget.tokens, std::max({most, int64_t{kPageTokens}, limits_.least_prefill()}));
}

// Short prompts, which find half of the budget; a chunk at least is left to those that have
// started.
void Scheduler::AdmitBeside(Seconds now, Budget* budget, Schedule* schedule) {
  const int64_t least = limits_.least_prefill(), reserved = least > 1 ? least : 0;
  const auto half = [least](int64_t all) { return std::min(all, std::max(least, (all + 1) / 2)); };
  const int64_t kept = half(budget->prefill), kept_rows = half(budget->logit_rows);
  budget->prefill -= kept;
  budget->logit_rows -= kept_rows;
  budget->tokens -= reserved;
  Admit(now, /*whole_prompts=*/true, budget, schedule);
  budget->tokens += reserved;
  budget->prefill = std::min(budget->prefill + kept, budget->tokens);
  budget->logit_rows += kept_rows;
}

Schedule Scheduler::Next(Seconds now) {
  Schedule schedule;
  prefixes_.BeginPlan(now);
  for (Sequence* sequence : running_) prefixes_.Follow(sequence);
  for (auto it = running_.begin(); it != running_.end();) {
    Sequence* sequence = *it++;
    if (!sequence->paused()) continue;
    Rest(sequence);
    Pause(sequence, &schedule);
  }
  LimitSlowReaders(now);
  YieldSlot(now);
  int64_t free = ledger_.free() + prefixes_.dropped_pages();
  for (const int32_t slot : release_slots_) free += ledger_.held(slot);
  // With no slot in use everything is free once this plan has released what it must, however late
  // the count of free pages is.
  const bool unused = running_.empty() && holders_.empty() && prefixes_.empty();
  pages_ = unused ? limits_.num_pages : std::min(limits_.num_pages, free);
  Budget budget{limits_.max_num_batched_tokens, limits_.max_num_batched_tokens,
                limits_.max_logit_rows};
  std::vector<Sequence*> ready = ReservePages(now, /*first_must=*/false, &schedule);
  if (ready.empty() && !ledger_.in_flight()) {
    ready = ReservePages(now, /*first_must=*/true, &schedule);
  }
  const bool others =
      std::any_of(ready.begin(), ready.end(), [](const auto* s) { return !s->reads_slowly(); });
  budget.best_effort = !others || ++steps_without_best_effort_ >= times_.BestEffortTurn();
  schedule.best_effort = others && budget.best_effort;
  std::vector<Sequence*> prefills;
  for (Sequence* sequence : ready) {
    if (sequence->reads_slowly()) {
      if (!budget.best_effort) continue;
      steps_without_best_effort_ = 0;
    }
    if (sequence->prefill_left() > 0) {
      prefills.push_back(sequence);
    } else {
      Plan(sequence, 1, now, &budget, &schedule);
    }
  }
  budget.prefill = MostPrefill(budget, static_cast<int64_t>(schedule.sequences.size()));
  if (!prefills.empty()) {
    AdmitBeside(now, &budget, &schedule);
    PlanPrefills(std::move(prefills), now, &budget, &schedule);
  }
  Admit(now, /*whole_prompts=*/false, &budget, &schedule);
  FOX_CHECK(budget.tokens >= 0 && budget.logit_rows >= 0);
  PutDecodesFirst(&schedule);
  schedule.plan.release_slots = std::exchange(release_slots_, {});
  for (const Sequence* sequence : schedule.sequences)
    taken_[static_cast<size_t>(sequence->slot)] = 0;
  for (const SwapRange& range : ranges_read_) swap_space_.Give(range);
  ranges_read_.clear();
  prefixes_.FillPlan(&schedule.plan);
  if (!schedule.plan.empty()) {
    ledger_.Submit(schedule.plan);
    prefixes_.Submitted();
  }
  return schedule;
}

void Scheduler::Collect(const StepPlan& plan, const StepResult& result) {
  ledger_.Collect(result);
  prefixes_.Collected();
  for (const int32_t slot : plan.release_slots) forecast_.Release(slot);
  for (size_t i = 0; i < plan.sequences.size(); ++i) {
    const PlannedSequence& planned = plan.sequences[i];
    if (planned.log_tolerance != log_tolerance_) continue;
    forecast_.Observe(planned.slot,
                      planned.position + static_cast<int64_t>(planned.token_ids.size()),
                      result.stats[i].live_pages());
  }
}

void Scheduler::ReleaseSlot(Sequence* sequence, bool keep) {
  prefixes_.Leave(sequence, keep);
  release_slots_.push_back(sequence->slot);
  pages_ += ledger_.held(sequence->slot);
  const auto place =
      std::lower_bound(free_slots_.begin(), free_slots_.end(), sequence->slot, std::greater<>());
  free_slots_.insert(place, sequence->slot);
  const auto holder = std::find(holders_.begin(), holders_.end(), sequence);
  if (holder != holders_.end()) holders_.erase(holder);
  sequence->ReleaseSlot();
}

// It runs no more, and keeps slot and pages.
void Scheduler::Rest(Sequence* sequence) {
  FOX_CHECK(running_.erase(sequence) == 1);
  waiting_.Stop(sequence);
  holders_.push_back(sequence);
  prefixes_.Rest(sequence);
}

void Scheduler::Pause(Sequence* sequence, Schedule* schedule) {
  sequence->state = SequenceState::kPaused;
  sequence->preempted = false;
  ++paused_;
  schedule->paused.push_back(sequence);
}

void Scheduler::Preempt(Sequence* sequence, Seconds now, Schedule* schedule) {
  FOX_CHECK(running_.erase(sequence) == 1);
  waiting_.Stop(sequence);
  sequence->pages_lost = std::max(ledger_.held(sequence->slot), sequence->slot_stats.live_pages());
  ++sequence->stats.preemptions;
  ++schedule->preemptions;
  ++sequence->times_preempted;
  sequence->blocked_since = kNever;
  sequence->preempted = true;
  SwapOut(sequence, /*drops=*/true, schedule);
  ReleaseSlot(sequence);
  sequence->state = SequenceState::kWaiting;
  waiting_.Add(sequence, now);
}

void Scheduler::TakePages(Sequence* holder, Seconds now, Schedule* schedule) {
  const bool waits = holder->state == SequenceState::kWaiting;
  if (waits) waiting_.Remove(holder);
  SwapOut(holder, /*drops=*/false, schedule);  // a paused or waiting sequence comes back last
  ReleaseSlot(holder);
  ++holder->stats.preemptions;
  ++schedule->preemptions;
  if (!waits) return;
  if (holder->reads_slowly()) {
    holder->place = places_++;
  } else {
    ++holder->times_preempted;  // it gave its running slot up, and its pages were to be kept
  }
  waiting_.Add(holder, now);
}

// Of those that hold pages and do not run: the one paused longest, if for long; else the one that
// is cheapest to compute again.
Sequence* Scheduler::SelectHolder(Seconds now) const {
  constexpr Seconds kLong = 5.0;
  const auto before = [now](const Sequence* a, const Sequence* b) {
    const bool a_waits = a->state == SequenceState::kWaiting;
    const bool b_waits = b->state == SequenceState::kWaiting;
    if (a_waits != b_waits) return b_waits;
    const bool a_long = !a_waits && now >= a->reader.paused_since() + kLong;
    const bool b_long = !b_waits && now >= b->reader.paused_since() + kLong;
    if (a_long != b_long) return a_long;
    if (a_long && a->reader.paused_since() != b->reader.paused_since())
      return a->reader.paused_since() < b->reader.paused_since();
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
                        now < sequence->blocked_since + kBackfilling;
    const int64_t left = yields ? RoomForOthers(*sequence) : 0;
    while (need > 0 && pages_ < need + left) {
      pages_ += prefixes_.Reclaim(need + left - pages_);
      if (pages_ >= need + left || prefixes_.reclaiming()) break;
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

// The first in order gets at least half of tokens and rows, then the shortest are done first. Where
// priorities keep the oldest prefill from being first, it goes first in one of kEarliestTurn steps:
// it must end some day.
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
    return a->prefill_left() < b->prefill_left();
  });
  const int64_t least = limits_.least_prefill();
  const int64_t kept =
      std::min(first->prefill_left(), std::max({int64_t{kPageTokens}, least, budget->prefill / 2}));
  const int64_t kept_rows = std::min({first->NumLogitRows(kept), budget->logit_rows,
                                      std::max(least, (budget->logit_rows + 1) / 2)});
  budget->prefill = std::max<int64_t>(0, budget->prefill - kept);
  budget->logit_rows -= kept_rows;
  for (Sequence* sequence : prefills) {
    Plan(sequence, ChunkSize(*sequence, *budget), now, budget, schedule);
  }
  budget->prefill = std::min(budget->prefill + kept, budget->tokens);
  budget->logit_rows += kept_rows;
  Plan(first, ChunkSize(*first, *budget), now, budget, schedule);
}

// The longest chunk of at most `most` tokens within the budget; 0: there is none.
int64_t Scheduler::ChunkWithin(const Sequence& sequence, const Budget& budget, int64_t most) const {
  int64_t count = std::min({sequence.longest_chunk(), budget.tokens, budget.prefill});
  count = std::min(prefixes_.CutChunk(sequence, count), most);
  // A token wants at most one row: leaving out as many tokens as rows are too many never cuts too
  // deep, and may have to be repeated where tokens want none.
  for (;;) {
    const int64_t excess = sequence.NumLogitRows(count) - budget.logit_rows;
    if (excess <= 0) break;
    count -= excess;
  }
  return sequence.ChunkWithin(count);
}

// With pages, too. Those of its least chunk are promised already.
int64_t Scheduler::ChunkSize(const Sequence& sequence, const Budget& budget) const {
  const int64_t pages = std::max<int64_t>(0, pages_ - RoomForOthers(sequence));
  const int64_t page_rows =
      PagesFor(sequence.computed + sequence.least_chunk()) + pages / limits_.lists_per_slot;
  return ChunkWithin(sequence, budget, page_rows * kPageTokens - sequence.computed);
}

void Scheduler::Plan(Sequence* sequence, int64_t count, Seconds now, Budget* budget,
                     Schedule* schedule) {
  if (count == 0) return;
  FOX_CHECK(sequence->chunk_multiple == 1 || sequence->ChunkWithin(count) == count);
  const int64_t begin = sequence->computed, promised = sequence->least_chunk();
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
  if (sequence->prefill_left() > 0) budget->prefill -= count;
  budget->prefill = std::min(budget->prefill, budget->tokens);
  budget->logit_rows -= static_cast<int64_t>(planned.logit_rows.size());
  const int64_t pages = ledger_.Between(begin + promised, begin + count);
  FOX_CHECK(pages == 0 || pages_ >= pages);
  pages_ -= pages;
  taken_[static_cast<size_t>(sequence->slot)] = ledger_.Between(begin, begin + count);
  sequence->computed += count;
  ++sequence->in_flight;
  if (planned.sample) {
    ++sequence->pending;
    sequence->UpdatePause(now);
  }
  schedule->plan.sequences.push_back(std::move(planned));
  schedule->sequences.push_back(sequence);
}

}  // namespace fox
