// Engine: requests in, tokens out. Single-threaded and pure: Step depends on what was submitted, on
// `now` as given and on the executor; no clock, no randomness, no I/O, no text, no gRPC.
// EngineThread runs one on a thread. Read scheduler.h next.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "engine/engine_options.h"
#include "engine/request.h"
#include "engine/step_executor.h"
#include "engine/step_observer.h"

namespace fox {

struct EngineStats {
  // Every request runs, waits or is paused.
  int64_t running = 0;
  int64_t waiting = 0;  // preempted ones included
  int64_t paused = 0;   // until their readers have caught up
  int64_t queued_tokens = 0;
  int64_t free_pages = 0;
  int64_t num_pages = 0;
  int64_t steps = 0;
  int64_t prompt_tokens = 0;  // totals since start
  int64_t generated_tokens = 0;
  int64_t preemptions = 0;
  int64_t pages_evicted = 0;
  // Ended requests. expired: past a deadline; aborted: FinishReason::kAbort and stalled readers;
  // rejected: never started for want of room, all samples of a prompt counted once.
  int64_t finished = 0, failed = 0, cancelled = 0, expired = 0, aborted = 0, rejected = 0;
  double queue_seconds = 0;  // how long a request that came now would wait for its start, estimated
  double max_log_evicted_mass = kNoMass;  // over all finished requests
};

class Engine {
 public:
  // `executor` and the observers must outlive the engine.
  Engine(const EngineOptions& options, StepExecutor& executor,
         std::vector<StepObserver*> observers = {});
  ~Engine();

  // Queues requests that belong together, samples of one prompt of one client; all of them or none.
  // On success exactly one output with `finish` will follow for each. Errors: those of
  // ValidateRequest; AlreadyExists; ResourceExhausted: the queue is full, or so long that they
  // could not meet a deadline: they may later. A client that holds less than its share of a full
  // queue displaces others: the newest requests of the client that holds most, which have not
  // started, end with ResourceExhausted.
  absl::Status Submit(std::vector<Request> requests, Seconds now);
  absl::Status Submit(Request request, Seconds now);

  // Ends a request with `status` (Ok: FinishReason::kAbort; the server also ends a request so when
  // a stop string matched). Its pages are free after the next step. Unknown ids are ignored.
  void Cancel(RequestId id, const absl::Status& status);

  // The client has taken `tokens` more of the request's tokens (Request::flow_window). A request
  // that is paused for EngineOptions::stall_timeout without it ends with Aborted.
  void Acknowledge(RequestId id, int64_t tokens);

  // Runs one step: expire, schedule, submit, collect, sample. Returns what happened, empty when
  // there was nothing to do. Over an executor of depth 2 the plan submitted stays in flight and the
  // one before is collected, so that the device always has work; once there is nothing to submit,
  // the plan in flight is collected. An executor failure ends every request with Unavailable and
  // is kept: fatal(); plans in flight are abandoned.
  std::vector<RequestOutput> Step(Seconds now);

  // Whether Step would do something: work, a plan in flight, or a cancellation to deliver.
  // NextDeadline: when Step has something to do even without work, at the earliest.
  bool HasWork() const;
  Seconds NextDeadline() const;
  const EngineStats& stats() const;
  const absl::Status& fatal() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace fox
