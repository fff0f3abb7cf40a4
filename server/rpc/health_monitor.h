// HealthMonitor: the truth behind grpc.health.v1, and the watchdog. SERVING while the engine's loop
// turns and answers are delivered; NOT_SERVING when draining, when a step takes long, when delivery
// is stuck or when the engine has failed. It watches on a thread of its own, so a dead engine
// cannot keep health alive; the same thread looks for readers that have stalled and trims the heap.
#pragma once

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "engine/base/mutex.h"
#include "server/calls/server_core.h"
#include "server/process/heap_trim.h"

namespace grpc {
class HealthCheckServiceInterface;
}

namespace fox {

// Seconds without a delivery, while some wait, after which health turns.
inline constexpr double kMaxDeliverySeconds = 10.0;

// Stop is called by one thread at a time, the others by any.
class HealthMonitor {
 public:
  // Sets "" and each of `services`. `core` must outlive the monitor, `health` its Stop.
  //
  // A step hangs when it takes longer than `step_timeout` seconds and than 4 times the slowest one
  // so far; health turns at half of that. Time in which the process itself was stopped does not
  // count. `on_fatal` is called once, from the monitor's thread, when the engine has failed or
  // hangs: then `fatal()` of the engine is still ok. `delivery_age`: seconds for which deliveries
  // have been stuck; null: not watched.
  HealthMonitor(ServerCore& core, grpc::HealthCheckServiceInterface* health,
                const std::vector<std::string>& services, std::function<void()> on_fatal,
                double step_timeout = 60.0, std::function<double()> delivery_age = nullptr);
  ~HealthMonitor();  // Stop

  // Ends the monitor's thread and reports NOT_SERVING. `health` may be destroyed afterwards.
  void Stop();
  // Looks now instead of at the next tick, for callers that have just drained.
  void Check();
  // The status that it reported last. Any thread, until the monitor dies.
  bool serving() const {
    const MutexLock lock(mutex_);
    return serving_;
  }

 private:
  void Loop();
  // False: the monitor is stopping.
  bool WaitForTick();
  // Measures the running step. True: it hangs.
  bool Measure();
  double StepLimit() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  ServerCore& core_;
  grpc::HealthCheckServiceInterface* const health_;
  const double step_timeout_;
  const std::function<double()> delivery_age_;
  std::function<void()> on_fatal_;   // used by the monitor's thread alone
  double last_look_, last_age_ = 0;  // seconds; used by the monitor's thread alone
  HeapTrim heap_;                    // used by the monitor's thread alone

  mutable Mutex mutex_;
  CondVar wake_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool serving_ ABSL_GUARDED_BY(mutex_) = false;
  // Seconds of this thread's time without a turn of the engine's loop: now, and at most before.
  double step_seconds_ ABSL_GUARDED_BY(mutex_) = 0;
  double slowest_step_ ABSL_GUARDED_BY(mutex_) = 0;
  std::thread thread_;
};

}  // namespace fox
