// Engine::Step: end what must end, schedule, submit, collect, sample. Read engine.h first.
#include "engine/engine.h"

#include <algorithm>
#include <deque>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/request_validation.h"
#include "engine/sampler.h"
#include "engine/scheduler.h"
#include "engine/sequence.h"
#include "kernels/core/check.h"

namespace fox {
namespace {

Finish FinishWith(absl::Status status) {
  Finish finish;
  finish.status = std::move(status);
  return finish;
}

Finish FinishFor(FinishReason reason) {
  Finish finish;
  finish.reason = reason;
  return finish;
}

absl::Status Stopped() { return absl::UnavailableError("the engine stopped after a failure"); }

// When a sequence expires next.
Seconds DeadlineOf(const Sequence& sequence) {
  return sequence.started ? sequence.request.deadline
                          : std::min(sequence.request.deadline, sequence.request.queue_deadline);
}

}  // namespace

struct Engine::State {
  State(const EngineOptions& engine_options, StepExecutor& step_executor,
        std::vector<StepObserver*> step_observers)
      : options(engine_options),
        executor(step_executor),
        observers(std::move(step_observers)),
        limits(step_executor.limits()),
        scheduler(limits),
        sampler(limits.vocab_size),
        free_pages(limits.num_pages) {
    stats.num_pages = limits.num_pages;
    stats.free_pages = limits.num_pages;
  }

  absl::Status Queue(Request request, Seconds now);
  void DeliverCancellations(Seconds now, std::vector<RequestOutput>* outputs);
  void Expire(Seconds now, std::vector<RequestOutput>* outputs);
  Sequence* Find(RequestId id, int64_t arrival) const;
  // Whether there was something to submit.
  bool SubmitNext(Seconds now, std::vector<RequestOutput>* outputs);
  void CollectOldest(Seconds now, std::vector<RequestOutput>* outputs);
  // Takes what a collected plan computed for one of its sequences.
  void Process(const PlannedSequence& planned, Sequence* sequence, const float* logits,
               absl::StatusOr<SampledToken>* sampled, Seconds now, RequestOutput* output);
  void Fail(const absl::Status& status, Seconds now, std::vector<RequestOutput>* outputs);
  void Record(Sequence* sequence, const AcpStats& slot_stats);
  // Both add to the output; the finish is set when they end the request.
  void ScorePrompt(Sequence* sequence, const PlannedSequence& planned, const float* logits,
                   RequestOutput* output);
  void Accept(Sequence* sequence, absl::StatusOr<SampledToken> token, Seconds now,
              RequestOutput* output);
  // Ends a sequence that the scheduler no longer knows.
  void End(Sequence* sequence, Seconds now, Finish* finish);
  void Count(const Finish& finish);
  void UpdateGauges();

  // A plan submitted and not yet collected. Its sequences may end meanwhile, and an id may come
  // again: they are found by id and arrival.
  struct InFlight {
    StepPlan plan;
    std::vector<int64_t> arrivals;  // of plan.sequences
  };

  const EngineOptions options;
  StepExecutor& executor;
  const std::vector<StepObserver*> observers;
  const ExecutorLimits limits;
  Scheduler scheduler;
  Sampler sampler;
  std::map<RequestId, std::unique_ptr<Sequence>> sequences;  // waiting and running
  std::vector<std::pair<RequestId, absl::Status>> cancellations;
  std::deque<InFlight> in_flight;  // the oldest first
  int64_t free_pages;              // after the last plan collected
  int64_t arrivals = 0;
  Seconds earliest = kNever;  // no deadline is before this
  Seconds last_step = -kNever;
  bool idle = true;  // a step now would find nothing to do
  EngineStats stats;
  absl::Status fatal;
};

absl::Status Engine::State::Queue(Request request, Seconds now) {
  if (!fatal.ok()) return Stopped();
  if (absl::Status status = ValidateRequest(request, options, limits); !status.ok()) return status;
  if (sequences.count(request.id) > 0) {
    return absl::AlreadyExistsError(absl::StrCat("request ", request.id, " is running"));
  }
  if (stats.waiting >= options.max_num_queued_reqs) {
    return absl::ResourceExhaustedError("the queue is full");
  }
  const int64_t tokens = static_cast<int64_t>(request.prompt.size());
  if (tokens > options.max_num_queued_tokens - stats.queued_tokens) {
    return absl::ResourceExhaustedError("the queue holds too many tokens");
  }
  const RequestId id = request.id;
  auto sequence = std::make_unique<Sequence>(std::move(request), options, limits.max_model_len,
                                             arrivals++, now);
  earliest = std::min(earliest, DeadlineOf(*sequence));
  scheduler.Add(sequence.get());
  sequences.emplace(id, std::move(sequence));
  ++stats.waiting;
  stats.queued_tokens += tokens;
  idle = false;
  return absl::OkStatus();
}

void Engine::State::DeliverCancellations(Seconds now, std::vector<RequestOutput>* outputs) {
  for (auto& [id, status] : cancellations) {
    const auto found = sequences.find(id);
    if (found == sequences.end()) continue;  // cancelled twice
    RequestOutput& output = outputs->emplace_back();
    output.id = id;
    output.finish = status.ok() ? FinishFor(FinishReason::kAbort) : FinishWith(std::move(status));
    scheduler.Remove(found->second.get());
    End(found->second.get(), now, &*output.finish);
  }
  cancellations.clear();
}

void Engine::State::Expire(Seconds now, std::vector<RequestOutput>* outputs) {
  if (now < earliest) return;
  earliest = kNever;
  for (auto it = sequences.begin(); it != sequences.end();) {
    Sequence* sequence = it->second.get();
    ++it;
    const Seconds deadline = DeadlineOf(*sequence);
    if (now < deadline) {
      earliest = std::min(earliest, deadline);
      continue;
    }
    RequestOutput& output = outputs->emplace_back();
    output.id = sequence->request.id;
    output.finish = FinishWith(absl::DeadlineExceededError(
        sequence->started || now >= sequence->request.deadline ? "the deadline has passed"
                                                               : "waited too long in the queue"));
    scheduler.Remove(sequence);
    End(sequence, now, &*output.finish);
  }
}

Sequence* Engine::State::Find(RequestId id, int64_t arrival) const {
  const auto found = sequences.find(id);
  if (found == sequences.end() || found->second->arrival != arrival) return nullptr;
  return found->second.get();
}

bool Engine::State::SubmitNext(Seconds now, std::vector<RequestOutput>* outputs) {
  Schedule schedule = scheduler.Next(now);
  stats.preemptions += schedule.preemptions;
  for (Sequence* sequence : schedule.exhausted) {
    RequestOutput& output = outputs->emplace_back();
    output.id = sequence->request.id;
    output.finish =
        FinishWith(absl::ResourceExhaustedError("the page pool cannot hold this request"));
    End(sequence, now, &*output.finish);
  }
  if (schedule.plan.empty()) return false;
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
    if (sequence->started) continue;
    sequence->started = true;
    sequence->stats.first_scheduled = now;
    stats.prompt_tokens += sequence->prompt_tokens;
  }
  return true;
}

void Engine::State::CollectOldest(Seconds now, std::vector<RequestOutput>* outputs) {
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
  scheduler.Collect(*result);
  for (size_t i = 0; i < count; ++i) {
    const PlannedSequence& planned = flight.plan.sequences[i];
    Sequence* sequence = Find(planned.id, flight.arrivals[i]);
    if (sequence == nullptr) continue;  // it has ended: this was surplus
    Record(sequence, result->stats[i]);
    RequestOutput output;
    output.id = planned.id;
    Process(planned, sequence, result->logits[i], planned.sample ? &result->sampled.at(i) : nullptr,
            now, &output);
    if (output.finish) {
      scheduler.Remove(sequence);
      End(sequence, now, &*output.finish);
    }
    if (output.finish || !output.tokens.empty() || !output.prompt_logprobs.empty()) {
      outputs->push_back(std::move(output));
    }
  }
}

void Engine::State::Process(const PlannedSequence& planned, Sequence* sequence, const float* logits,
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

void Engine::State::Fail(const absl::Status& status, Seconds now,
                         std::vector<RequestOutput>* outputs) {
  fatal = status;
  in_flight.clear();  // abandoned
  for (auto it = sequences.begin(); it != sequences.end();) {
    Sequence* sequence = it->second.get();
    ++it;
    RequestOutput& output = outputs->emplace_back();
    output.id = sequence->request.id;
    output.finish = FinishWith(Stopped());
    scheduler.Remove(sequence);
    End(sequence, now, &*output.finish);
  }
}

void Engine::State::Record(Sequence* sequence, const AcpStats& slot_stats) {
  stats.pages_evicted += slot_stats.pages_evicted - sequence->slot_stats.pages_evicted;
  sequence->OnStepCollected(slot_stats);
}

void Engine::State::ScorePrompt(Sequence* sequence, const PlannedSequence& planned,
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

void Engine::State::Accept(Sequence* sequence, absl::StatusOr<SampledToken> token, Seconds now,
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
  } else if (sequence->paused()) {
    sequence->paused_since = now;
  }
}

void Engine::State::End(Sequence* sequence, Seconds now, Finish* finish) {
  finish->stats = sequence->FinalStats(now);
  Count(*finish);
  for (StepObserver* observer : observers) observer->OnFinish(sequence->request.id, *finish);
  sequences.erase(sequence->request.id);
}

void Engine::State::Count(const Finish& finish) {
  if (finish.status.ok()) {
    ++stats.finished;
  } else if (absl::IsCancelled(finish.status)) {
    ++stats.cancelled;
  } else {
    ++stats.failed;
  }
  stats.max_log_evicted_mass =
      std::max(stats.max_log_evicted_mass, finish.stats.acp.max_log_evicted_mass);
}

void Engine::State::UpdateGauges() {
  stats.running = stats.waiting = stats.paused = stats.queued_tokens = 0;
  for (const auto& [id, sequence] : sequences) {
    if (sequence->slot >= 0) {
      ++stats.running;
    } else {
      ++stats.waiting;
      stats.queued_tokens += static_cast<int64_t>(sequence->tokens.size());
    }
    if (sequence->paused()) ++stats.paused;
  }
  stats.free_pages = free_pages;
}

Engine::Engine(const EngineOptions& options, StepExecutor& executor,
               std::vector<StepObserver*> observers)
    : state_(std::make_unique<State>(options, executor, std::move(observers))) {}

Engine::~Engine() = default;

absl::Status Engine::Submit(Request request, Seconds now) {
  absl::Status status = state_->Queue(std::move(request), now);
  if (!status.ok()) ++state_->stats.rejected;
  return status;
}

void Engine::Cancel(RequestId id, const absl::Status& status) {
  if (state_->sequences.count(id) == 0) return;
  state_->cancellations.emplace_back(id, status);
  state_->idle = false;
}

void Engine::Acknowledge(RequestId id, int64_t tokens) {
  const auto found = state_->sequences.find(id);
  if (found == state_->sequences.end() || tokens <= 0) return;
  Sequence& sequence = *found->second;
  sequence.acknowledged += std::min(tokens, sequence.generated() - sequence.acknowledged);
  state_->idle = false;
}

std::vector<RequestOutput> Engine::Step(Seconds now) {
  State& state = *state_;
  std::vector<RequestOutput> outputs;
  if (!state.fatal.ok()) return outputs;
  state.last_step = now;
  state.DeliverCancellations(now, &outputs);
  state.Expire(now, &outputs);
  const bool submitted = state.SubmitNext(now, &outputs);
  // One plan stays in flight behind the one that is being collected, as long as there are plans to
  // make; else what is in flight must come in first.
  const bool full = state.in_flight.size() >= static_cast<size_t>(state.limits.depth);
  const bool collects = !state.in_flight.empty() && (full || !submitted);
  if (collects) state.CollectOldest(now, &outputs);
  // Slots of sequences that ended in this step are released by the next plan.
  const bool over = state.sequences.empty() && !state.scheduler.has_pending_release();
  state.idle = state.in_flight.empty() && (over || (!submitted && !collects));
  state.UpdateGauges();
  return outputs;
}

bool Engine::HasWork() const { return state_->fatal.ok() && !state_->idle; }

Seconds Engine::NextDeadline() const {
  Seconds next = kNever;
  bool someone_waits = false;
  for (const auto& [id, sequence] : state_->sequences) {
    next = std::min(next, DeadlineOf(*sequence));
    someone_waits |= sequence->slot < 0 && !sequence->paused();
  }
  if (!someone_waits) return next;
  // Paused sequences make room for waiting ones after a while.
  for (const auto& [id, sequence] : state_->sequences) {
    if (sequence->slot < 0 || !sequence->paused()) continue;
    const Seconds grace = sequence->paused_since + Scheduler::kPauseGrace;
    if (grace > state_->last_step) next = std::min(next, grace);
  }
  return next;
}

const EngineStats& Engine::stats() const { return state_->stats; }

const absl::Status& Engine::fatal() const { return state_->fatal; }

}  // namespace fox
