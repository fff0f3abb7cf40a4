// Engine: requests in, tokens out. One thread calls it. It is pure: the outputs of Step depend on
// the requests submitted, on the `now` given and on the executor alone. It has no clock, no
// randomness, no I/O, no text and no gRPC; EngineOptions::matching_threads share its loops and
// change no output. EngineThread runs an engine on a thread. engine.cc takes steps;
// engine_requests.cc begins and ends requests. Read scheduler.h next.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
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
#include "engine/request/snapshot_store.h"
#include "engine/request/step_executor.h"
#include "engine/request/step_observer.h"
#include "engine/schedule/scheduler.h"
#include "engine/schedule/sequence.h"
#include "engine/schedule/service_times.h"
#include "kernels/core/thread_pool.h"

namespace fox {

class Engine {
 public:
  // `executor`, the observers and `store` must outlive the engine. `store`: where snapshots of the
  // prefix cache go when they leave the pool; null: nowhere.
  Engine(const EngineOptions& options, StepExecutor& executor,
         std::vector<StepObserver*> observers = {}, SnapshotStore* store = nullptr);

  // Queues requests that belong together, samples of one prompt of one client: all of them or none.
  // On success exactly one output with `finish` follows for each. Errors: as ValidateRequest;
  // AlreadyExists; ResourceExhausted: the queue is full, or too long for a deadline of the
  // requests, which may be submitted again later. A client that holds less than its share of a full
  // queue displaces others: the newest unstarted requests of the client that holds most end with
  // ResourceExhausted.
  absl::Status Submit(std::vector<Request> requests, Seconds now);
  absl::Status Submit(Request request, Seconds now);

  // Ends a request with `status`. Ok: it finishes with `reason`, which is kStop if a stop string
  // matched.
  // Its pages are free after the next step. Unknown ids are ignored.
  void Cancel(RequestId id, const absl::Status& status, FinishReason reason = FinishReason::kAbort);

  // The client has taken `tokens` more of the request's tokens (Request::flow_window). A request
  // that is paused for EngineOptions::stall_timeout without it ends with Aborted.
  void Acknowledge(RequestId id, int64_t tokens);

  // The next step drops the snapshots of a namespace of the prefix cache, and they are removed from
  // the store. Running requests go on. `only`: its NamespaceName (engine/store/digest.h); "": all.
  void FlushPrefixCache(const std::string& only = "");
  // From now on each step saves a snapshot in the store, the most valuable first, until
  // EngineStats::snapshots_unsaved is 0. For an engine that is about to end.
  void SavePrefixCache();

  // `wake` is called, on any thread, when HasWork has become true by news of the store. Null: no
  // longer.
  void SetWake(std::function<void()> wake);

  // Runs one step: expire, schedule, submit, collect, sample. Returns an output for each request
  // with news; empty: there was nothing to do. With an executor of depth 2 the plan submitted stays
  // in flight and the plan before it is collected, so that the device always has work; once there
  // is nothing to submit, the plan in flight is collected. An executor failure ends every request
  // with Unavailable and is kept in fatal(); plans in flight are abandoned.
  std::vector<RequestOutput> Step(Seconds now);

  // For times without work: handles a failure of the executor as Step does.
  std::vector<RequestOutput> Probe(Seconds now);

  // True if Step would do something now: there is work, a plan in flight, or a cancellation.
  bool HasWork() const;
  // The earliest time at which Step has something to do even without work.
  Seconds NextDeadline() const;
  const EngineStats& stats() const;
  // Null: none. For the methods that any thread may call.
  const SnapshotStore* store() const { return store_; }
  // Estimated wait of a request that came now. Time linear in the running sequences.
  Seconds QueueSeconds() const;
  const absl::Status& fatal() const;
  // Aborts if the states of sequences, slots, pages and snapshots contradict each other. For tests;
  // debug builds also check after each plan.
  void Check() const;

 private:
  // A plan submitted and not yet collected. Its sequences may end meanwhile and their ids may be
  // used again, so they are found by id and arrival.
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
    FinishReason reason;  // if `status` is Ok
  };
  // Calls since the last step, which carries them out.
  struct Calls {
    std::vector<Cancellation> cancellations;
    std::vector<std::pair<RequestId, int64_t>> acknowledgements;
  };
  // Tokens of the plan that the last step collected, by which that step's time is measured.
  struct StepTime {
    Seconds begin = -kNever;  // when the last step began
    int64_t prefill = 0, decodes = 0;
  };

  static absl::Status Stopped();  // status of all requests after a failure
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
  // True if there was a plan to submit.
  bool SubmitNext(Seconds now, std::vector<RequestOutput>* outputs);
  void CollectOldest(Seconds now, std::vector<RequestOutput>* outputs);
  // Sends the masks of the plan just submitted.
  void SendMasks(Seconds now, std::vector<RequestOutput>* outputs);
  // Takes the logits or the token that a collected plan computed for one of its sequences.
  void Process(const PlannedSequence& planned, Sequence* sequence, StepResult* result, size_t index,
               Seconds now, RequestOutput* output);
  // Ends the sequence if it has had its last token.
  void Deliver(Sequence* sequence, RequestOutput output, Seconds now,
               std::vector<RequestOutput>* outputs);
  void Fail(const absl::Status& status, Seconds now, std::vector<RequestOutput>* outputs);
  void Record(Sequence* sequence, const AcpStats& slot_stats);
  void CountPages(const StepPlan& plan, const StepResult& result);
  void AskForWindows(Seconds now, const std::vector<Sequence*>& planned, StepPlan* plan);
  KeptWindows WindowsOf(const Sequence& sequence, const PlannedSequence& planned,
                        const StepResult& result) const;
  // ScorePrompt and Accept add to the output, and set its finish if they end the request.
  // `logits`: of planned.logit_rows; `scores`: of planned.scores. One of both has the prompt's
  // rows.
  void ScorePrompt(Sequence* sequence, const PlannedSequence& planned, const float* logits,
                   const SampleRecord* scores, RequestOutput* output);
  void Accept(Sequence* sequence, absl::StatusOr<SampledToken> token, Seconds now,
              RequestOutput* output);
  // Ends a sequence that the scheduler no longer knows.
  void End(Sequence* sequence, Seconds now, Finish* finish);
  void Count(const Finish& finish);
  // Measures the time of the last step.
  void RecordTime(Seconds now);
  void UpdateGauges();

  const EngineOptions options_;
  StepExecutor& executor_;
  SnapshotStore* const store_;
  const std::vector<StepObserver*> observers_;
  const ExecutorLimits limits_;
  ServiceTimes times_;
  Scheduler scheduler_;
  Sampler sampler_;
  ThreadPool matching_;
  std::map<RequestId, std::unique_ptr<Sequence>> sequences_;
  std::set<Sequence*, Sooner> events_;  // sequences with a deadline or a stall to come
  Calls calls_;
  std::vector<RequestOutput> displaced_;  // the next step reports them
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
