// Engine::Step: end what must end, schedule, submit, collect, sample. Read engine_state.h first.
#include "engine/engine.h"

#include <algorithm>
#include <utility>

#include "engine/engine_state.h"
#include "kernels/core/check.h"

namespace fox {

Sequence* EngineState::Find(RequestId id, int64_t arrival) const {
  const auto found = sequences.find(id);
  if (found == sequences.end() || found->second->arrival != arrival) return nullptr;
  return found->second.get();
}

bool EngineState::SubmitNext(Seconds now, std::vector<RequestOutput>* outputs) {
  Schedule schedule = scheduler.Next(now);
  stats.preemptions += schedule.preemptions;
  stats.swap_outs += static_cast<int64_t>(schedule.plan.swap_outs.size());
  const auto end = [&](Sequence* sequence, const absl::Status& status) {
    RequestOutput& output = outputs->emplace_back();
    output.id = sequence->request.id;
    output.finish = FinishWith(status);
    End(sequence, now, &*output.finish);
  };
  for (Sequence* sequence : schedule.exhausted) {
    end(sequence, absl::OutOfRangeError("the page pool cannot hold this request"));
  }
  for (Sequence* sequence : schedule.hopeless) {
    end(sequence, absl::DeadlineExceededError("waited so long that the deadline cannot be met"));
  }
  for (Sequence* sequence : schedule.paused) {
    times.RecordPause(sequence->produced() - sequence->acknowledged);
    UpdateEvent(sequence);
  }
  LimitPaused(now, outputs);
  if (schedule.plan.empty()) return false;
  AskForWindows(now, schedule.sequences, &schedule.plan);
  for (StepObserver* observer : observers) observer->BeforeSubmit(schedule.plan);
  if (absl::Status status = executor.Submit(schedule.plan); !status.ok()) {
    Fail(status, now, outputs);
    return true;
  }
  for (StepObserver* observer : observers) observer->AfterSubmit(schedule.plan);
  InFlight& flight = in_flight.emplace_back();
  flight.plan = std::move(schedule.plan);
  for (Sequence* sequence : schedule.sequences) {
    flight.arrivals.push_back(sequence->arrival);
    flight.guests.push_back(schedule.guests && sequence->reads_slowly());
    if (!sequence->started) OnStarted(sequence, now);
  }
  return true;
}

void EngineState::OnStarted(Sequence* sequence, Seconds now) {
  sequence->started = true;
  sequence->stats.first_scheduled = now;
  stats.prompt_tokens += sequence->prompt_tokens;
  if (std::exchange(sequence->group->started, true)) return;
  for (Sequence* member : sequence->group->members) UpdateEvent(member);
}

void EngineState::CollectOldest(Seconds now, std::vector<RequestOutput>* outputs) {
  for (StepObserver* observer : observers) observer->BeforeCollect();
  absl::StatusOr<StepResult> result = executor.Collect();
  if (!result.ok()) return Fail(result.status(), now, outputs);
  const InFlight flight = std::move(in_flight.front());
  in_flight.pop_front();
  const size_t count = flight.arrivals.size();
  FOX_CHECK(result->logits.size() == count && result->stats.size() == count);
  for (StepObserver* observer : observers) observer->AfterCollect(flight.plan, *result);
  ++stats.steps;
  free_pages = result->free_pages;
  for (const auto* swaps : {&flight.plan.swap_outs, &flight.plan.swap_ins}) {
    for (const SwappedSlot& swapped : *swaps) step_swapped += limits.SwapBytes(swapped.pages);
  }
  CountPages(flight.plan, *result);
  scheduler.Collect(flight.plan, *result);
  for (size_t i = 0; i < count; ++i) {
    const PlannedSequence& planned = flight.plan.sequences[i];
    const auto fed = static_cast<int64_t>(planned.token_ids.size());
    if (flight.guests[i]) {
      step_guests = true;
    } else {
      (fed > 1 ? step_prefill : step_decodes) += fed;
    }
    Sequence* sequence = Find(planned.id, flight.arrivals[i]);
    if (sequence == nullptr) continue;  // it has ended: this was surplus
    Record(sequence, result->stats[i]);
    RequestOutput output;
    output.id = planned.id;
    if (sequence->request.report_windows && result->first_pages != nullptr) {
      output.windows = WindowsOf(*sequence, planned, *result);
    }
    Process(planned, sequence, result->logits[i], planned.sample ? &result->sampled.at(i) : nullptr,
            now, &output);
    if (output.finish) {
      scheduler.Remove(sequence, output.finish->status.ok());
      End(sequence, now, &*output.finish);
    } else if (sequence->paused() && !output.tokens.empty()) {
      sequence->paused_since = now;
      UpdateEvent(sequence);
    }
    if (output.finish || output.windows || !output.tokens.empty() ||
        !output.prompt_logprobs.empty()) {
      outputs->push_back(std::move(output));
    }
  }
}

void EngineState::Process(const PlannedSequence& planned, Sequence* sequence, const float* logits,
                          absl::StatusOr<SampledToken>* sampled, Seconds now,
                          RequestOutput* output) {
  FOX_CHECK(planned.logit_rows.empty() || planned.sample || logits != nullptr);
  ScorePrompt(sequence, planned, logits, output);
  const int64_t end = planned.position + static_cast<int64_t>(planned.token_ids.size());
  // All earlier plans are collected: what is known now is what this one was made to feed.
  if (output->finish || end < static_cast<int64_t>(sequence->tokens.size())) return;
  if (!sequence->samples()) {
    output->finish = FinishFor(FinishReason::kLength);
  } else if (sampled != nullptr) {
    FOX_CHECK(sequence->pending > 0);
    --sequence->pending;
    Accept(sequence, std::move(*sampled), now, output);
  } else {
    const size_t last_row = planned.logit_rows.size() - 1;
    const float* row = logits + last_row * static_cast<size_t>(limits.vocab_size);
    Accept(sequence,
           sampler.Sample(row, sequence->request.sampling, sequence->counts,
                          sequence->stop.MaskedAt(sequence->generated()), sequence->tokens.size()),
           now, output);
  }
}

void EngineState::Fail(const absl::Status& status, Seconds now,
                       std::vector<RequestOutput>* outputs) {
  fatal = status;
  in_flight.clear();  // abandoned
  while (!sequences.empty()) {
    Close(sequences.begin()->second.get(), FinishWith(Stopped()), now, outputs);
  }
}

void EngineState::Record(Sequence* sequence, const AcpStats& slot_stats) {
  const AcpStats& before = sequence->slot_stats;
  stats.pages_evicted += slot_stats.pages_evicted - slot_stats.pages_found_evicted -
                         (before.pages_evicted - before.pages_found_evicted);
  stats.blocks_total += slot_stats.blocks_total - before.blocks_total;
  stats.blocks_pruned += slot_stats.blocks_pruned - before.blocks_pruned;
  sequence->OnStepCollected(slot_stats);
}

void EngineState::CountPages(const StepPlan& plan, const StepResult& result) {
  const auto set = [this](int32_t slot, const SlotPages& pages) {
    const SlotPages before = std::exchange(slot_pages[static_cast<size_t>(slot)], pages);
    stats.kept_pages += pages.kept - before.kept;
    stats.unpruned_pages += pages.unpruned - before.unpruned;
  };
  for (const int32_t slot : plan.release_slots) set(slot, {});
  for (size_t i = 0; i < plan.sequences.size(); ++i) {
    const AcpStats& acp = result.stats[i];
    set(plan.sequences[i].slot, {acp.live_pages(), acp.pages_allocated});
  }
}

// All slots at once, at a bounded rate, and only while somebody watches: the copy is of all slots.
void EngineState::AskForWindows(Seconds now, const std::vector<Sequence*>& planned,
                                StepPlan* plan) {
  if (now < next_windows) return;
  plan->read_windows = std::any_of(planned.begin(), planned.end(), [](const Sequence* sequence) {
    return sequence->request.report_windows;
  });
  if (plan->read_windows) next_windows = now + kWindowsInterval;
}

KeptWindows EngineState::WindowsOf(const Sequence& sequence, const PlannedSequence& planned,
                                   const StepResult& result) const {
  KeptWindows windows;
  windows.tokens = planned.position + static_cast<int64_t>(planned.token_ids.size());
  const int32_t* first = result.first_pages + planned.slot * limits.lists_per_slot;
  windows.first_pages.assign(first, first + limits.lists_per_slot);
  windows.acp = sequence.stats.acp;
  windows.acp += sequence.slot_stats;
  windows.acp.log_tolerance = sequence.log_tolerance;
  return windows;
}

void EngineState::ScorePrompt(Sequence* sequence, const PlannedSequence& planned,
                              const float* logits, RequestOutput* output) {
  for (size_t k = 0; k < planned.logit_rows.size(); ++k) {
    const int64_t row = planned.position + planned.logit_rows[k];
    if (row >= sequence->prompt_tokens - 1) return;  // the row to sample from
    const float* row_logits = logits + k * static_cast<size_t>(limits.vocab_size);
    const int32_t next = sequence->tokens[static_cast<size_t>(row) + 1];
    absl::StatusOr<SampledToken> token =
        sampler.ScorePrompt(row_logits, sequence->request.sampling, next);
    if (!token.ok()) {
      output->finish = FinishWith(token.status());
      return;
    }
    output->prompt_logprobs.push_back(*std::move(token));
    sequence->prompt_logprobs_done = row + 1;
  }
}

void EngineState::Accept(Sequence* sequence, absl::StatusOr<SampledToken> token, Seconds now,
                         RequestOutput* output) {
  if (!token.ok()) {
    output->finish = FinishWith(token.status());
    return;
  }
  if (sequence->generated() == 0) {
    sequence->stats.first_token = now;
    for (StepObserver* observer : observers) observer->OnFirstToken(sequence->request.id);
  }
  if (sequence->stop.Stops(token->id)) {
    output->finish = FinishFor(FinishReason::kStop);
    output->finish->stop_token_id = token->id;
    output->finish->eos = sequence->stop.IsEos(token->id);
    return;
  }
  sequence->Append(*token);
  ++stats.generated_tokens;
  output->tokens.push_back(*std::move(token));
  if (sequence->generated() >= sequence->max_tokens) {
    output->finish = FinishFor(FinishReason::kLength);
  } else {
    sequence->UpdatePause(now);
  }
}

void EngineState::RecordTime(Seconds now) {
  const Seconds seconds = now - std::exchange(last_step, now);
  const int64_t prefill = std::exchange(step_prefill, 0), decodes = std::exchange(step_decodes, 0);
  const bool guests = std::exchange(step_guests, false);
  if (const int64_t bytes = std::exchange(step_swapped, 0); bytes > 0) {
    if (!guests) times.RecordSwap(prefill, decodes, bytes, limits.swap_rate, seconds);
  } else {
    times.RecordStep(prefill, decodes, seconds, guests);
  }
}

void EngineState::UpdateGauges() {
  const WaitingQueue& waiting = scheduler.waiting();
  stats.running = scheduler.running();
  stats.waiting = waiting.size();
  stats.paused = scheduler.paused();
  stats.queued_tokens = waiting.tokens();
  stats.free_pages = free_pages;
  stats.swapped = scheduler.swapped();
  stats.swap_used_bytes = scheduler.swap_used();
  stats.snapshots = scheduler.prefixes().size();
  stats.snapshot_pages = scheduler.prefixes().empty() ? 0 : scheduler.shared_pages();
  stats.prefix_queried_tokens = scheduler.prefixes().stats().queried_tokens;
  stats.prefix_found_tokens = scheduler.prefixes().stats().found_tokens;
  stats.snapshots_dropped = scheduler.prefixes().stats().dropped;
}

Engine::Engine(const EngineOptions& options, StepExecutor& executor,
               std::vector<StepObserver*> observers)
    : state_(std::make_unique<EngineState>(options, executor, std::move(observers))) {}

Engine::~Engine() = default;

absl::Status Engine::Submit(std::vector<Request> requests, Seconds now) {
  absl::Status status = state_->Queue(std::move(requests), now);
  if (absl::IsResourceExhausted(status)) ++state_->stats.rejected;
  return status;
}

absl::Status Engine::Submit(Request request, Seconds now) {
  std::vector<Request> requests;
  requests.push_back(std::move(request));
  return Submit(std::move(requests), now);
}

void Engine::Cancel(RequestId id, const absl::Status& status, FinishReason reason) {
  if (state_->sequences.count(id) == 0) return;
  state_->cancellations.push_back({id, status, reason});
  state_->idle = false;
}

void Engine::Acknowledge(RequestId id, int64_t tokens) {
  const auto found = state_->sequences.find(id);
  if (found == state_->sequences.end() || tokens <= 0) return;
  Sequence& sequence = *found->second;
  sequence.acknowledged += std::min(tokens, sequence.generated() - sequence.acknowledged);
  if (sequence.paused()) {
    state_->acknowledgements.emplace_back(id, sequence.arrival);
    state_->idle = false;
  }
}

std::vector<RequestOutput> Engine::Step(Seconds now) {
  EngineState& state = *state_;
  std::vector<RequestOutput> outputs = std::exchange(state.displaced, {});
  if (!state.fatal.ok()) return outputs;
  state.RecordTime(now);
  state.DeliverCancellations(now, &outputs);
  state.TakeAcknowledgements(now);
  state.Expire(now, &outputs);
  const bool submitted = state.SubmitNext(now, &outputs);
  // One plan stays in flight behind the one that is being collected, as long as there are plans to
  // make; else what is in flight must come in first.
  const bool full = state.in_flight.size() >= static_cast<size_t>(state.limits.depth);
  const bool collects = !state.in_flight.empty() && (full || !submitted);
  if (collects) state.CollectOldest(now, &outputs);
  // Slots of sequences that ended in this step are released by the next plan.
  state.idle = state.in_flight.empty() && !state.scheduler.has_pending_release() &&
               (state.sequences.empty() || (!submitted && !collects));
  // From here to the next step there may be a pause.
  if (state.idle) {
    state.step_prefill = state.step_decodes = state.step_swapped = 0;
    state.step_guests = false;
  }
  state.UpdateGauges();
  return outputs;
}

std::vector<RequestOutput> Engine::Probe(Seconds now) {
  std::vector<RequestOutput> outputs;
  if (!state_->fatal.ok()) return outputs;
  const absl::Status status = state_->executor.Probe();
  if (!status.ok()) state_->Fail(status, now, &outputs);
  return outputs;
}

void Engine::FlushPrefixCache() {
  state_->scheduler.FlushPrefixes();
  if (state_->scheduler.has_pending_release()) state_->idle = false;
}

bool Engine::HasWork() const { return state_->fatal.ok() && !state_->idle; }

Seconds Engine::NextDeadline() const {
  if (state_->events.empty()) return kNever;
  return (*state_->events.begin())->next_event;
}

const EngineStats& Engine::stats() const { return state_->stats; }

Seconds Engine::QueueSeconds() const {
  const Scheduler& scheduler = state_->scheduler;
  const ServiceTimes& times = state_->times;
  if (!times.known() || scheduler.running() == 0) return 0;
  return times.Wait(scheduler.RunningWork(), scheduler.waiting().All(times), scheduler.seats());
}

const absl::Status& Engine::fatal() const { return state_->fatal; }

}  // namespace fox
