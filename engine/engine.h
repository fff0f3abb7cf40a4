// Engine: requests in, tokens out. Single-threaded and pure: Step depends on what was submitted, on
// `now` as given and on the executor; no clock, no randomness, no I/O, no text, no gRPC.
// EngineThread runs one on a thread. Read scheduler.h next.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "engine/request/engine_options.h"
#include "engine/request/request.h"
#include "engine/schedule/engine_stats.h"
#include "engine/schedule/step_executor.h"
#include "engine/schedule/step_observer.h"

namespace fox {

struct EngineState;

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
  std::unique_ptr<EngineState> state_;
};

}  // namespace fox
