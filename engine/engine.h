// Engine: requests in, tokens out. One thread calls, and it is pure: Step depends on what was
// submitted, on `now` as given and on the executor, not on EngineOptions::matching_threads, which
// share its loops; no clock, no randomness, no I/O, no text, no gRPC.
// EngineThread runs one on a thread. engine.cc takes steps; engine_requests.cc begins and ends
// requests. Read scheduler.h next.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "engine/request/engine_options.h"
#include "engine/request/engine_stats.h"
#include "engine/request/request.h"
#include "engine/request/sampler.h"
#include "engine/request/step_executor.h"
#include "engine/request/step_observer.h"
#include "engine/schedule/scheduler.h"
#include "engine/schedule/sequence.h"
#include "engine/schedule/service_times.h"
#include "kernels/core/thread_pool.h"

namespace fox {

class Engine {
 public:
  // `executor` and the observers must outlive the engine.
  Engine(const EngineOptions& options, StepExecutor& executor,
         std::vector<StepObserver*> observers = {});

  // Queues requests that belong together, samples of one prompt of one client; all of them or none.
  // On success exactly one output with `finish` will follow for each. Errors: those of
  // ValidateRequest; AlreadyExists; ResourceExhausted: the queue is full, or so long that they
  // could not meet a deadline: they may later. A client that holds less than its share of a full
  // queue displaces others: the newest requests of the client that holds most, which have not
  // started, end with ResourceExhausted.
  absl::Status Submit(std::vector<Request> requests, Seconds now);
  absl::Status Submit(Request request, Seconds now);

  // Ends a request with `status`; Ok: it finishes with `reason`, kStop where a stop string matched.
  // Its pages are free after the next step. Unknown ids are ignored.
  void Cancel(RequestId id, const absl::Status& status, FinishReason reason = FinishReason::kAbort);

  // The client has taken `tokens` more of the request's tokens (Request::flow_window). A request
  // that is paused for EngineOptions::stall_timeout without it ends with Aborted.
  void Acknowledge(RequestId id, int64_t tokens);

  // Drops all that the prefix cache holds, with the next step; what runs goes on.
  void FlushPrefixCache();

  // Runs one step: expire, schedule, submit, collect, sample. Returns what happened, empty when
  // there was nothing to do. Over an executor of depth 2 the plan submitted stays in flight and the
  // one before is collected, so that the device always has work; once there is nothing to submit,
  // the plan in flight is collected. An executor failure ends every request with Unavailable and
  // is kept: fatal(); plans in flight are abandoned.
  std::vector<RequestOutput> Step(Seconds now);

  // For when there is no work: an executor that has failed meanwhile is found out, as Step would.
  std::vector<RequestOutput> Probe(Seconds now);

  // Whether Step would do something: work, a plan in flight, or a cancellation to deliver.
  // NextDeadline: when Step has something to do even without work, at the earliest.
  bool HasWork() const;
  Seconds NextDeadline() const;
  const EngineStats& stats() const;
  // How long a request that came now would wait for its start, estimated. Looks at all that runs.
  Seconds QueueSeconds() const;
  const absl::Status& fatal() const;

 private:
  // A plan submitted and not yet collected. Its sequences may end meanwhile, and an id may come
  // again: they are found by id and arrival.
  struct InFlight {
    StepPlan plan;
    std::vector<int64_t> arrivals;  // of plan.sequences
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

  struct Cancellation {
    RequestId id;
    absl::Status status;
    FinishReason reason;  // of one that is Ok
  };
  // Calls since the last step, which carries them out.
  struct Calls {
    std::vector<Cancellation> cancellations;
    std::vector<std::pair<RequestId, int64_t>> acknowledgements;
  };
  // The plan that the last step collected, if that step's time is to be measured.
  struct StepTime {
    Seconds begin = -kNever;  // of the last step
    int64_t prefill = 0, decodes = 0;
    bool swaps = false;
  };

  static absl::Status Stopped();  // what a request gets after a failure
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
  // Of the plan just submitted.
  void SendMasks(Seconds now, std::vector<RequestOutput>* outputs);
  // Takes what a collected plan computed for one of its sequences.
  void Process(const PlannedSequence& planned, Sequence* sequence, const float* logits,
               absl::StatusOr<SampledToken>* sampled, Seconds now, RequestOutput* output);
  // Ends the sequence if it has had its last token.
  void Deliver(Sequence* sequence, RequestOutput output, Seconds now,
               std::vector<RequestOutput>* outputs);
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

  const EngineOptions options_;
  StepExecutor& executor_;
  const std::vector<StepObserver*> observers_;
  const ExecutorLimits limits_;
  ServiceTimes times_;
  Scheduler scheduler_;
  Sampler sampler_;
  ThreadPool matching_;
  std::map<RequestId, std::unique_ptr<Sequence>> sequences_;
  std::set<Sequence*, Sooner> events_;  // deadlines and stalls
  Calls calls_;
  std::vector<RequestOutput> displaced_;  // ends to be reported by the next step
  std::deque<InFlight> in_flight_;        // the oldest first
  int64_t free_pages_;                    // after the last plan collected
  std::vector<SlotPages> slot_pages_;     // by slot
  Seconds next_windows_ = -kNever;        // when windows may be reported again
  int64_t arrivals_ = 0;
  StepTime step_;
  bool idle_ = true;  // a step now would find nothing to do
  EngineStats stats_;
  absl::Status fatal_;
};

}  // namespace fox
