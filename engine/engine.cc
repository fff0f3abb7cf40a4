// Engine::Step: expire requests, schedule, submit, collect, sample. Read engine.h first.
#include "engine/engine.h"

#include <algorithm>

#include "kernels/core/check.h"

namespace fox {
namespace {

// Fewer steps of matchers take less than 0.3 ms, which is not worth waking threads.
constexpr int64_t kParallelSteps = 100'000;

}  // namespace

absl::Status Engine::Stopped() {
  return absl::UnavailableError("the engine stopped after a failure");
}

Sequence* Engine::Find(RequestId id, int64_t arrival) const {
  const auto found = sequences_.find(id);
  if (found == sequences_.end() || found->second->arrival != arrival) return nullptr;
  return found->second.get();
}

bool Engine::SubmitNext(Seconds now, std::vector<RequestOutput>* outputs) {
  Schedule schedule = scheduler_.Next(now);
  stats_.preemptions += schedule.preemptions;
  for (auto& [sequence, status] : schedule.ended) {
    RequestOutput& output = outputs->emplace_back();
    output.id = sequence->request.id;
    output.finish = Finish::With(std::move(status));
    End(sequence, now, &*output.finish);
  }
  for (Sequence* sequence : schedule.paused) {
    times_.RecordPause(sequence->produced() - sequence->reader.acknowledged());
    UpdateEvent(sequence);
  }
  LimitPaused(now, outputs);
  if (schedule.plan.empty()) return false;
  AskForWindows(now, schedule.sequences, &schedule.plan);
  for (StepObserver* observer : observers_) observer->BeforeSubmit(schedule.plan);
  if (absl::Status status = executor_.Submit(schedule.plan); !status.ok()) {
    Fail(status, now, outputs);
    return true;
  }
  for (StepObserver* observer : observers_) observer->AfterSubmit(schedule.plan);
  InFlight& flight = in_flight_.emplace_back();
  flight.plan = std::move(schedule.plan);
  for (Sequence* sequence : schedule.sequences) {
    flight.arrivals.push_back(sequence->arrival);
    if (!sequence->started) OnStarted(sequence, now);
  }
  return true;
}

void Engine::OnStarted(Sequence* sequence, Seconds now) {
  sequence->started = true;
  sequence->stats.first_scheduled = now;
  if (const auto& grammar = sequence->request.grammar; grammar != nullptr) {
    sequence->matcher = std::make_unique<GrammarMatcher>(grammar, sequence->stop.ids());
  }
  stats_.prompt_tokens += sequence->prompt_tokens;
  if (std::exchange(sequence->group->started, true)) return;
  for (Sequence* member : sequence->group->members) UpdateEvent(member);
}

void Engine::CollectOldest(Seconds now, std::vector<RequestOutput>* outputs) {
  for (StepObserver* observer : observers_) observer->BeforeCollect();
  absl::StatusOr<StepResult> result = executor_.Collect();
  if (!result.ok()) return Fail(result.status(), now, outputs);
  FOX_CHECK(!in_flight_.empty());
  const InFlight flight = std::move(in_flight_.front());
  in_flight_.pop_front();
  const size_t count = flight.arrivals.size();
  FOX_CHECK(result->logits.size() == count && result->stats.size() == count);
  FOX_CHECK(flight.plan.sequences.size() == count);
  for (StepObserver* observer : observers_) observer->AfterCollect(flight.plan, *result);
  ++stats_.steps;
  free_pages_ = result->free_pages;
  CountPages(flight.plan, *result);
  scheduler_.Collect(flight.plan, *result);
  // Sequences with a grammar. Their masks are computed after this loop, by several threads if there
  // is enough to do.
  std::vector<std::pair<Sequence*, RequestOutput>> constrained;
  int64_t steps = 0;  // estimate: the steps of their last masks
  for (size_t i = 0; i < count; ++i) {
    const PlannedSequence& planned = flight.plan.sequences[i];
    const auto fed = static_cast<int64_t>(planned.token_ids.size());
    if (!planned.draft) (fed > 1 ? step_.prefill : step_.decodes) += fed;
    Sequence* sequence = Find(planned.id, flight.arrivals[i]);
    if (sequence == nullptr) continue;  // it has ended, and the work for it was surplus
    Record(sequence, result->stats[i]);
    RequestOutput output;
    output.id = planned.id;
    if (planned.draft) {
      ++stats_.drafted_tokens;
      if (!sequence->TakeDraft(planned)) continue;
      ++stats_.accepted_drafts;
      ++step_.decodes;
      output = std::move(outputs->back());  // with the token before the draft
      outputs->pop_back();
    }
    if (!result->lost_mass.empty()) sequence->AddLostMass(planned, result->lost_mass[i]);
    if (sequence->request.report_windows && result->first_pages != nullptr) {
      output.windows = WindowsOf(*sequence, planned, *result);
    }
    Process(planned, sequence, &*result, i, now, &output);
    if (sequence->matcher != nullptr && !output.finish && !output.tokens.empty()) {
      steps += sequence->mask_steps;
      constrained.emplace_back(sequence, std::move(output));
    } else {
      Deliver(sequence, std::move(output), now, outputs);
    }
  }
  const auto rows = static_cast<int64_t>(constrained.size());
  matching_.ForEach(rows, steps >= kParallelSteps, [&](int64_t row) {
    Sequence& sequence = *constrained[static_cast<size_t>(row)].first;
    sequence.matcher->Accept(sequence.tokens.back()).IgnoreError();  // the matcher keeps the error
    sequence.mask_steps = sequence.matcher->steps();
    sequence.all_mask_steps += sequence.mask_steps;
  });
  for (auto& [sequence, output] : constrained) Deliver(sequence, std::move(output), now, outputs);
}

void Engine::Deliver(Sequence* sequence, RequestOutput output, Seconds now,
                     std::vector<RequestOutput>* outputs) {
  if (!output.finish && !output.tokens.empty()) {
    output.finish = sequence->GrammarEnd();
    if (!output.finish && sequence->generated() >= sequence->max_tokens) {
      output.finish = Finish::For(FinishReason::kLength);
    }
    if (!output.finish) sequence->UpdatePause(now);
  }
  if (output.finish) {
    scheduler_.Remove(sequence, output.finish->status.ok());
    End(sequence, now, &*output.finish);
  } else if (sequence->paused() && !output.tokens.empty()) {
    sequence->reader.Touch(now);
    UpdateEvent(sequence);
  }
  if (output.finish || output.windows || !output.tokens.empty() ||
      !output.prompt_logprobs.empty()) {
    outputs->push_back(std::move(output));
  }
}

void Engine::SendMasks(Seconds now, std::vector<RequestOutput>* outputs) {
  if (in_flight_.empty()) return;
  const InFlight& flight = in_flight_.back();
  std::vector<const uint32_t*> masks;
  for (size_t i = 0; i < flight.arrivals.size(); ++i) {
    const PlannedSequence& planned = flight.plan.sequences[i];
    if (!planned.masked()) continue;
    const Sequence* sequence = Find(planned.id, flight.arrivals[i]);
    masks.push_back(sequence == nullptr ? nullptr : sequence->matcher->mask().data());
  }
  if (masks.empty()) return;
  if (absl::Status status = executor_.SetMasks(masks); !status.ok()) Fail(status, now, outputs);
}

void Engine::Process(const PlannedSequence& planned, Sequence* sequence, StepResult* result,
                     size_t index, Seconds now, RequestOutput* output) {
  const float* const logits = result->logits[index];
  FOX_CHECK(planned.logit_rows.empty() || planned.sample || logits != nullptr);
  ScorePrompt(sequence, planned, logits,
              planned.scores.empty() ? nullptr : result->scores.at(index), output);
  const int64_t end = planned.position + static_cast<int64_t>(planned.token_ids.size());
  // All earlier plans are collected, so every token that this plan was made to feed is known now.
  if (output->finish || end < static_cast<int64_t>(sequence->tokens.size())) return;
  if (!sequence->samples()) {
    output->finish = Finish::For(FinishReason::kLength);
    return;
  }
  // The grammar may forbid even the first token. Deliver asks after each token.
  if (sequence->generated() == 0) output->finish = sequence->GrammarEnd();
  if (output->finish) return;
  if (planned.sample) {
    FOX_CHECK(sequence->pending > 0);
    --sequence->pending;
    Accept(sequence, std::move(result->sampled.at(index)), now, output);
  } else {
    const size_t last_row = planned.logit_rows.size() - 1;
    const float* row = logits + last_row * static_cast<size_t>(limits_.vocab_size);
    const GrammarMatcher* matcher = sequence->matcher.get();
    Accept(sequence,
           sampler_.Sample(row, sequence->request.sampling, sequence->counts,
                           sequence->stop.MaskedAt(sequence->generated()), sequence->tokens.size(),
                           matcher != nullptr ? matcher->mask().data() : nullptr),
           now, output);
  }
}

void Engine::Fail(const absl::Status& status, Seconds now, std::vector<RequestOutput>* outputs) {
  fatal_ = status;
  in_flight_.clear();  // abandoned
  while (!sequences_.empty()) {
    Close(sequences_.begin()->second.get(), Finish::With(Stopped()), now, outputs);
  }
}

void Engine::Record(Sequence* sequence, const AcpStats& slot_stats) {
  const AcpStats& before = sequence->slot_stats;
  stats_.pages_evicted += slot_stats.pages_evicted - slot_stats.pages_found_evicted -
                          (before.pages_evicted - before.pages_found_evicted);
  stats_.blocks_total += slot_stats.blocks_total - before.blocks_total;
  stats_.blocks_pruned += slot_stats.blocks_pruned - before.blocks_pruned;
  sequence->OnStepCollected(slot_stats);
}

void Engine::CountPages(const StepPlan& plan, const StepResult& result) {
  const auto set = [this](int32_t slot, const SlotPages& pages) {
    const SlotPages before = std::exchange(slot_pages_[static_cast<size_t>(slot)], pages);
    stats_.kept_pages += pages.kept - before.kept;
    stats_.unpruned_pages += pages.unpruned - before.unpruned;
  };
  for (const int32_t slot : plan.release_slots) set(slot, {});
  for (size_t i = 0; i < plan.sequences.size(); ++i) {
    const AcpStats& acp = result.stats[i];
    set(plan.sequences[i].slot, {acp.live_pages(), acp.pages_allocated});
  }
}

// The copy is of all slots at once, so it happens at a bounded rate and only while a request asks
// for windows.
void Engine::AskForWindows(Seconds now, const std::vector<Sequence*>& planned, StepPlan* plan) {
  if (now < next_windows_) return;
  plan->read_windows = std::any_of(planned.begin(), planned.end(), [](const Sequence* sequence) {
    return sequence->request.report_windows;
  });
  if (plan->read_windows) next_windows_ = now + kWindowsInterval;
}

KeptWindows Engine::WindowsOf(const Sequence& sequence, const PlannedSequence& planned,
                              const StepResult& result) const {
  KeptWindows windows;
  windows.tokens = planned.position + static_cast<int64_t>(planned.token_ids.size());
  const int32_t* first = result.first_pages + planned.slot * limits_.lists_per_slot;
  windows.first_pages.assign(first, first + limits_.lists_per_slot);
  windows.acp = sequence.stats.acp;
  windows.acp += sequence.slot_stats;
  windows.acp.log_tolerance = sequence.log_tolerance;
  return windows;
}

void Engine::ScorePrompt(Sequence* sequence, const PlannedSequence& planned, const float* logits,
                         const SampleRecord* scores, RequestOutput* output) {
  const SamplingParams& sampling = sequence->request.sampling;
  // False: the row ends the request.
  const auto deliver = [&](int32_t row, absl::StatusOr<SampledToken> token) {
    if (!token.ok()) {
      output->finish = Finish::With(token.status());
      return false;
    }
    output->prompt_logprobs.push_back(*std::move(token));
    sequence->prompt_rows_done = planned.position + row + 1;
    return true;
  };
  FOX_CHECK(planned.scores.empty() || scores != nullptr);
  for (size_t k = 0; k < planned.scores.size(); ++k) {
    const auto& [row, how] = planned.scores[k];
    if (!deliver(row, TokenOf(scores[k], how.logprobs, limits_.vocab_size))) return;
  }
  if (!planned.scores.empty()) return;
  for (size_t k = 0; k < planned.logit_rows.size(); ++k) {
    const int64_t position = planned.position + planned.logit_rows[k];
    if (position >= sequence->prompt_tokens - 1) return;  // the row to sample from
    const float* row_logits = logits + k * static_cast<size_t>(limits_.vocab_size);
    if (PromptRows* const rows = sequence->request.prompt_rows.get(); rows != nullptr) {
      std::copy_n(row_logits, limits_.vocab_size,
                  rows->logits.data() + (position - rows->first) * limits_.vocab_size);
      sequence->prompt_rows_done = position + 1;
      continue;
    }
    const int32_t next = sequence->tokens[static_cast<size_t>(position) + 1];
    if (!deliver(planned.logit_rows[k], sampler_.ScorePrompt(row_logits, sampling, next))) return;
  }
}

void Engine::Accept(Sequence* sequence, absl::StatusOr<SampledToken> token, Seconds now,
                    RequestOutput* output) {
  if (!token.ok()) {
    output->finish = Finish::With(token.status());
    return;
  }
  if (sequence->generated() == 0) {
    sequence->stats.first_token = now;
    for (StepObserver* observer : observers_) observer->OnFirstToken(sequence->request.id);
  }
  if (sequence->stop.Stops(token->id)) {
    output->finish = Finish::For(FinishReason::kStop);
    output->finish->stop_token_id = token->id;
    output->finish->eos = sequence->stop.IsEos(token->id);
    return;
  }
  sequence->Append(*token);
  ++stats_.generated_tokens;
  output->tokens.push_back(*std::move(token));
}

void Engine::RecordTime(Seconds now) {
  const Seconds seconds = now - std::exchange(step_.begin, now);
  const int64_t prefill = std::exchange(step_.prefill, 0),
                decodes = std::exchange(step_.decodes, 0);
  times_.RecordStep(prefill, decodes, seconds);
}

void Engine::UpdateGauges() {
  const WaitingQueue& waiting = scheduler_.waiting();
  stats_.running = scheduler_.running();
  stats_.waiting = waiting.size();
  stats_.paused = scheduler_.paused();
  stats_.queued_tokens = waiting.tokens();
  stats_.free_pages = free_pages_;
  stats_.snapshots = scheduler_.prefixes().size();
  stats_.snapshot_pages = scheduler_.prefixes().empty() ? 0 : scheduler_.shared_pages();
  stats_.prefix_queried_tokens = scheduler_.prefixes().stats().queried_tokens;
  stats_.prefix_found_tokens = scheduler_.prefixes().stats().found_tokens;
  stats_.snapshots_dropped = scheduler_.prefixes().stats().dropped;
  if (store_ == nullptr) return;
  stats_.snapshots_unsaved = scheduler_.prefixes().unsaved();
  stats_.snapshots_lost = scheduler_.prefixes().stats().lost;
  stats_.snapshots_landed = scheduler_.prefixes().stats().landed;
}

void Engine::Check() const {
  int64_t paused = 0;
  for (const auto& [id, sequence] : sequences_) {
    sequence->Check();
    FOX_CHECK(sequence->request.id == id && sequence->state != SequenceState::kNone);
    FOX_CHECK((sequence->next_event != kNever) == (events_.count(sequence.get()) > 0));
    if (sequence->state == SequenceState::kPaused) ++paused;
  }
  FOX_CHECK(paused == scheduler_.paused());
  FOX_CHECK(paused + scheduler_.running() + scheduler_.waiting().size() ==
            static_cast<int64_t>(sequences_.size()));
  FOX_CHECK(in_flight_.size() <= static_cast<size_t>(limits_.depth));
  scheduler_.Check();
}

Engine::Engine(const EngineOptions& options, StepExecutor& executor,
               std::vector<StepObserver*> observers, SnapshotStore* store)
    : options_(options),
      executor_(executor),
      store_(store),
      observers_(std::move(observers)),
      limits_(executor.limits()),
      scheduler_(limits_, times_, options_, store),
      sampler_(limits_.vocab_size),
      matching_(options.matching_threads),
      free_pages_(limits_.num_pages),
      slot_pages_(static_cast<size_t>(limits_.slots())) {
  stats_.num_pages = limits_.num_pages;
  UpdateGauges();
}

absl::Status Engine::Submit(std::vector<Request> requests, Seconds now) {
  absl::Status status = Queue(std::move(requests), now);
  if (absl::IsResourceExhausted(status)) ++stats_.rejected;
  return status;
}

absl::Status Engine::Submit(Request request, Seconds now) {
  std::vector<Request> requests;
  requests.push_back(std::move(request));
  return Submit(std::move(requests), now);
}

void Engine::Cancel(RequestId id, const absl::Status& status, FinishReason reason) {
  if (sequences_.count(id) == 0) return;
  calls_.cancellations.push_back({id, status, reason});
  idle_ = false;
}

void Engine::Acknowledge(RequestId id, int64_t tokens) {
  const auto found = sequences_.find(id);
  if (found == sequences_.end() || tokens <= 0) return;
  Sequence& sequence = *found->second;
  sequence.reader.Acknowledge(
      std::min(tokens, sequence.generated() - sequence.reader.acknowledged()));
  if (sequence.paused()) {
    calls_.acknowledgements.emplace_back(id, sequence.arrival);
    idle_ = false;
  }
}

std::vector<RequestOutput> Engine::Step(Seconds now) {
  std::vector<RequestOutput> outputs = std::exchange(displaced_, {});
  if (!fatal_.ok()) return outputs;
  RecordTime(now);
  DeliverCancellations(now, &outputs);
  TakeAcknowledgements(now);
  Expire(now, &outputs);
  const bool submitted = SubmitNext(now, &outputs);
  // At depth 2 one plan stays in flight while the plan before it is collected. If there is no plan
  // to submit, the plans in flight are collected.
  const bool full = in_flight_.size() >= static_cast<size_t>(limits_.depth);
  const bool collects = !in_flight_.empty() && (full || !submitted);
  if (collects) CollectOldest(now, &outputs);
  if (submitted) SendMasks(now, &outputs);
  // Slots of sequences that ended in this step are released by the next plan.
  idle_ = in_flight_.empty() && !scheduler_.has_pending_release() &&
          (sequences_.empty() || (!submitted && !collects));
  // Do not measure a step before which there may be a pause.
  if (idle_) step_.prefill = step_.decodes = 0;
  UpdateGauges();
  return outputs;
}

std::vector<RequestOutput> Engine::Probe(Seconds now) {
  std::vector<RequestOutput> outputs;
  if (!fatal_.ok()) return outputs;
  const absl::Status status = executor_.Probe();
  if (!status.ok()) Fail(status, now, &outputs);
  return outputs;
}

void Engine::FlushPrefixCache(const std::string& only) {
  scheduler_.ClearPrefixes(only);
  if (scheduler_.has_pending_release()) idle_ = false;
}

void Engine::SavePrefixCache() {
  scheduler_.SavePrefixes();
  if (scheduler_.has_pending_release()) idle_ = false;
}

void Engine::SetWake(std::function<void()> wake) {
  if (store_ != nullptr) store_->SetWake(std::move(wake));
}

bool Engine::HasWork() const { return fatal_.ok() && (!idle_ || scheduler_.prefixes().has_news()); }

Seconds Engine::NextDeadline() const {
  const Seconds next = scheduler_.prefixes().next_event();
  return events_.empty() ? next : std::min(next, (*events_.begin())->next_event);
}

const EngineStats& Engine::stats() const { return stats_; }

Seconds Engine::QueueSeconds() const {
  if (!times_.known() || scheduler_.running() == 0) return 0;
  return times_.Wait(scheduler_.RunningWork(), scheduler_.waiting().All(times_),
                     scheduler_.max_running());
}

const absl::Status& Engine::fatal() const { return fatal_; }

}  // namespace fox
