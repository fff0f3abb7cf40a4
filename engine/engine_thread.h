// EngineThread: runs an Engine on its own thread and carries requests in and outputs out. The only
// thread that calls an Engine. Callbacks run on the engine thread between two steps: they may
// call back, and must not block.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "engine/engine.h"

namespace fox {

// Where the engine's answers to a submission arrive, on the engine thread.
class SubmissionListener {
 public:
  virtual ~SubmissionListener() = default;
  // Once, before any output: Ok, or the error that refused all requests of the submission.
  virtual void OnSubmitted(const absl::Status& status) = 0;
  // Every output of its requests; the last one of each has `finish`.
  virtual void OnOutput(RequestOutput output) = 0;
};

// All public methods may be called from any thread; none waits for the engine but Stop.
class EngineThread {
 public:
  using Clock = std::function<Seconds()>;

  // `clock` defaults to the steady clock.
  explicit EngineThread(std::unique_ptr<Engine> engine, Clock clock = nullptr);
  ~EngineThread();  // Stop()

  // From now on `batch_end` is called on the engine thread after the callbacks of each turn of the
  // loop, with the time: what they gathered can be handed on at once. Call before the first Submit.
  void SetBatchEnd(std::function<void(Seconds now)> batch_end);

  // Queues requests that belong together; the engine takes all of them, between the same two steps,
  // or none: the error is that of Engine::Submit, or Unavailable, within this call, when draining
  // or stopping. The listener is let go of after the last output.
  void Submit(std::vector<Request> requests, const std::shared_ptr<SubmissionListener>& listener);
  // What waits for the engine is bounded by its requests, however long a step takes: the tokens
  // acknowledged to one of them are added up.
  void Cancel(RequestId id, const absl::Status& status, FinishReason reason = FinishReason::kAbort);
  void Acknowledge(RequestId id, int64_t tokens);

  // See Engine::FlushPrefixCache.
  void FlushPrefixCache();

  // From now on Submit answers Unavailable. Running requests go on.
  void Drain();
  // Takes it back.
  void Undrain();
  bool draining() const;
  // True when nothing is queued or running.
  bool idle() const;
  // Ends all requests with Unavailable and joins the thread. False: after `patience` seconds a step
  // has still not come back. The requests have not ended then, and the destructor would wait for
  // it: the process can only exit.
  bool Stop(double patience = kNever);

  // A copy of the engine's counters, at most one step old.
  EngineStats stats() const;
  // Engine::QueueSeconds, 10 ms and a step old at most.
  Seconds QueueSeconds() const;
  // Seconds since the loop last turned; grows when a step hangs. The loop turns at least each 40
  // ms.
  double HeartbeatAge() const;
  // Not ok after an executor failure; the process should end.
  absl::Status fatal() const;
  RequestId NextId();
  Seconds Now() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace fox
