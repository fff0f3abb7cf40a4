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
  int64_t running = 0;  // hold a slot, paused ones included
  int64_t waiting = 0;  // preempted ones included
  int64_t paused = 0;
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

  // Queues a request. On success exactly one output with `finish` will follow. Errors: those of
  // ValidateRequest; AlreadyExists; ResourceExhausted: the queue is full.
  absl::Status Submit(Request request, Seconds now);

  // Ends a request with `status` (Ok: FinishReason::kAbort; the server also ends a request so when
  // a stop string matched). Its pages are free after the next step. Unknown ids are ignored.
  void Cancel(RequestId id, const absl::Status& status);

  // The client has taken `tokens` more of the request's tokens (Request::flow_window).
  void Acknowledge(RequestId id, int64_t tokens);

  // Runs one step: expire, schedule, submit, collect, sample. Returns what happened, empty when
  // there was nothing to do. Over an executor of depth 2 the plan submitted stays in flight and the
  // one before is collected, so that the device always has work; once there is nothing to submit,
  // the plan in flight is collected. An executor failure ends every request with Unavailable and
  // is kept: fatal(); plans in flight are abandoned.
  std::vector<RequestOutput> Step(Seconds now);

  // Whether Step would do something: work, a plan in flight, or a cancellation to deliver.
  // `next_deadline`: the earliest deadline among waiting and running requests.
  bool HasWork() const;
  Seconds NextDeadline() const;
  const EngineStats& stats() const;
  const absl::Status& fatal() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace fox
