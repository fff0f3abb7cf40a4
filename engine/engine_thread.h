// EngineThread: runs an Engine on its own thread, which alone calls it, and carries requests in and
// outputs out. Listeners (delivery_pool.h) are called between two steps: they may call back, and
// must not block.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "engine/delivery_pool.h"
#include "engine/engine.h"

namespace fox {

// All public methods may be called from any thread; none waits for the engine but Stop.
class EngineThread {
 public:
  using Clock = std::function<Seconds()>;

  // `clock` defaults to the steady clock. `has_thread` false: the owner calls RunTurn instead, as a
  // simulation does.
  explicit EngineThread(std::unique_ptr<Engine> engine, Clock clock = nullptr,
                        bool has_thread = true);
  ~EngineThread();  // Stop()

  // From now on outputs go to their listeners through `pool`, which must outlive the last step;
  // without one they are delivered on the engine thread. Call before the first Submit.
  void SetDelivery(DeliveryPool* pool);

  // Queues requests that belong together; the engine takes all of them between the same two steps,
  // or none. Errors: as Engine::Submit; Unavailable, within this call: draining or stopping. The
  // listener is released after the last output. `lane`: of the delivery pool.
  void Submit(std::vector<Request> requests, const std::shared_ptr<SubmissionListener>& listener,
              size_t lane = 0);
  void Cancel(RequestId id, const absl::Status& status, FinishReason reason = FinishReason::kAbort);
  // Acknowledged tokens are added up by request, so their memory is bounded by the number of
  // requests, however long a step takes.
  void Acknowledge(RequestId id, int64_t tokens);

  // See Engine::FlushPrefixCache. Requests that are submitted later find nothing of it.
  // ResourceExhausted: too many namespaces wait for the engine's next step.
  absl::Status FlushPrefixCache(const std::string& only = "");
  // The store of the prefix cache, for the methods that any thread may call; null: none.
  const SnapshotStore* prefix_store() const;
  // See Engine::SavePrefixCache.
  void SavePrefixCache();

  // From now on Submit answers Unavailable. Running requests go on.
  void Drain();
  // Submit works again.
  void Undrain();
  bool draining() const;
  // True when nothing is queued or running.
  bool idle() const;
  // Ends all requests with Unavailable and joins the thread. False: a step has not come back within
  // `patience` seconds. The requests have not ended then, and the destructor would wait for the
  // step: the process can only exit.
  bool Stop(double patience = kNever);
  // Without a thread: executes the queued commands, then makes at most one step.
  void RunTurn();

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
