// EngineState: what an Engine consists of. Methods that take a step are in engine.cc, those that
// begin and end requests in engine_requests.cc. Read engine.h first.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "engine/request/engine_options.h"
#include "engine/request/sampler.h"
#include "engine/schedule/engine_stats.h"
#include "engine/schedule/scheduler.h"
#include "engine/schedule/sequence.h"
#include "engine/schedule/service_times.h"
#include "engine/schedule/step_executor.h"
#include "engine/schedule/step_observer.h"

namespace fox {

inline Finish FinishWith(absl::Status status) {
  Finish finish;
  finish.status = std::move(status);
  return finish;
}

inline Finish FinishFor(FinishReason reason) {
  Finish finish;
  finish.reason = reason;
  return finish;
}

inline absl::Status Stopped() {
  return absl::UnavailableError("the engine stopped after a failure");
}

struct EngineState {
  EngineState(const EngineOptions& engine_options, StepExecutor& step_executor,
              std::vector<StepObserver*> step_observers)
      : options(engine_options),
        executor(step_executor),
        observers(std::move(step_observers)),
        limits(step_executor.limits()),
        scheduler(limits, times, options),
        sampler(limits.vocab_size),
        free_pages(limits.num_pages),
        slot_pages(static_cast<size_t>(limits.slots())) {
    stats.num_pages = limits.num_pages;
    stats.free_pages = limits.num_pages;
  }

  absl::Status Queue(std::vector<Request> requests, Seconds now);
  absl::Status CheckRoom(const std::vector<Request>& requests, int64_t tokens,
                         std::vector<Sequence*>* victims);
  absl::Status CheckWait(const std::vector<Request>& requests, Seconds now) const;
  void Displace(const std::vector<Sequence*>& victims, Seconds now);
  // Takes a sequence from the scheduler and ends it.
  void Close(Sequence* sequence, Finish finish, Seconds now, std::vector<RequestOutput>* outputs);
  void DeliverCancellations(Seconds now, std::vector<RequestOutput>* outputs);
  void TakeAcknowledgements(Seconds now);
  void Expire(Seconds now, std::vector<RequestOutput>* outputs);
  void LimitPaused(Seconds now, std::vector<RequestOutput>* outputs);
  Seconds NextEvent(const Sequence& sequence) const;
  void UpdateEvent(Sequence* sequence);
  void OnStarted(Sequence* sequence, Seconds now);
  Sequence* Find(RequestId id, int64_t arrival) const;
  // Whether there was something to submit.
  bool SubmitNext(Seconds now, std::vector<RequestOutput>* outputs);
  void CollectOldest(Seconds now, std::vector<RequestOutput>* outputs);
  // Takes what a collected plan computed for one of its sequences.
  void Process(const PlannedSequence& planned, Sequence* sequence, const float* logits,
               absl::StatusOr<SampledToken>* sampled, Seconds now, RequestOutput* output);
  void Fail(const absl::Status& status, Seconds now, std::vector<RequestOutput>* outputs);
  void Record(Sequence* sequence, const AcpStats& slot_stats);
  void CountPages(const StepPlan& plan, const StepResult& result);
  void AskForWindows(Seconds now, const std::vector<Sequence*>& planned, StepPlan* plan);
  KeptWindows WindowsOf(const Sequence& sequence, const PlannedSequence& planned,
                        const StepResult& result) const;
  // Both add to the output; the finish is set when they end the request.
  void ScorePrompt(Sequence* sequence, const PlannedSequence& planned, const float* logits,
                   RequestOutput* output);
  void Accept(Sequence* sequence, absl::StatusOr<SampledToken> token, Seconds now,
              RequestOutput* output);
  // Ends a sequence that the scheduler no longer knows.
  void End(Sequence* sequence, Seconds now, Finish* finish);
  void Count(const Finish& finish);
  // What the plan took that the last step collected.
  void RecordTime(Seconds now);
  void UpdateGauges();

  // A plan submitted and not yet collected. Its sequences may end meanwhile, and an id may come
  // again: they are found by id and arrival.
  struct InFlight {
    StepPlan plan;
    std::vector<int64_t> arrivals;  // of plan.sequences
    std::vector<bool> guests;       // which of them: see Schedule
  };

  // As of the last plan collected.
  struct SlotPages {
    int64_t kept = 0, unpruned = 0;
  };

  struct Sooner {
    bool operator()(const Sequence* a, const Sequence* b) const {
      return a->next_event != b->next_event ? a->next_event < b->next_event
                                            : a->arrival < b->arrival;
    }
  };

  const EngineOptions options;
  StepExecutor& executor;
  const std::vector<StepObserver*> observers;
  const ExecutorLimits limits;
  ServiceTimes times;
  Scheduler scheduler;
  Sampler sampler;
  std::map<RequestId, std::unique_ptr<Sequence>> sequences;
  std::set<Sequence*, Sooner> events;  // deadlines and stalls
  struct Cancellation {
    RequestId id;
    absl::Status status;
    FinishReason reason;  // of one that is Ok
  };
  std::vector<Cancellation> cancellations;
  std::vector<std::pair<RequestId, int64_t>> acknowledgements;
  std::vector<RequestOutput> displaced;  // ends to be told by the next step
  std::deque<InFlight> in_flight;        // the oldest first
  int64_t free_pages;                    // after the last plan collected
  std::vector<SlotPages> slot_pages;     // by slot
  Seconds next_windows = -kNever;        // when windows may be reported again
  int64_t arrivals = 0;
  Seconds last_step = -kNever;
  // The plan that the last step collected, if that step's time is to be measured.
  int64_t step_prefill = 0, step_decodes = 0;
  int64_t step_swapped = 0;  // bytes
  bool step_guests = false;
  bool idle = true;  // a step now would find nothing to do
  EngineStats stats;
  absl::Status fatal;
};

}  // namespace fox
