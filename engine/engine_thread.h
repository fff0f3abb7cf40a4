// EngineThread: runs an Engine on its own thread and carries requests in and outputs out. The only
// place in engine/ with threads. Outputs are given to the request's sink on the engine thread; a
// sink must not block.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "engine/engine.h"

namespace fox {

// Called on the engine thread with every output of a request, the last one having `finish`. The
// sink is destroyed after that.
using OutputSink = std::function<void(RequestOutput output)>;

// All public methods may be called from any thread.
class EngineThread {
 public:
  using Clock = std::function<Seconds()>;

  // `clock` defaults to the steady clock.
  explicit EngineThread(std::unique_ptr<Engine> engine, Clock clock = nullptr);
  ~EngineThread();  // Stop()

  // Takes the request; errors of Engine::Submit are returned here, before anything is queued
  // (the call waits for the engine to look at it: at most one step).
  // After an error the sink is never called.
  absl::Status Submit(Request request, OutputSink sink);
  void Cancel(RequestId id, const absl::Status& status);
  void Acknowledge(RequestId id, int64_t tokens);

  // From now on Submit answers Unavailable. Running requests go on.
  void Drain();
  bool draining() const;
  // True when nothing is queued or running.
  bool idle() const;
  // Ends all requests with Unavailable and joins the thread.
  void Stop();

  // A copy of the engine's counters, at most one step old.
  EngineStats stats() const;
  // Seconds since the loop last turned; grows when a step hangs. The loop turns at least each 100
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
