// HealthMonitor: the truth behind grpc.health.v1. SERVING while the engine's loop turns;
// NOT_SERVING when draining, when a step hangs or when the engine has failed. It watches on a
// thread of its own, so a dead engine cannot keep health alive.
#pragma once

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "engine/mutex.h"
#include "server/server_core.h"

namespace grpc {
class HealthCheckServiceInterface;
}

namespace fox {

// Seconds without a turn of the engine's loop after which a step is taken to hang; none takes that
// long.
inline constexpr double kMaxHeartbeatAge = 10.0;

class HealthMonitor {
 public:
  // Sets "" and each of `services`. `health` and `core` must outlive the monitor. `on_fatal` is
  // called once, from the monitor's thread, when the engine has failed.
  HealthMonitor(const ServerCore& core, grpc::HealthCheckServiceInterface* health,
                std::vector<std::string> services, std::function<void()> on_fatal,
                double max_heartbeat_age = kMaxHeartbeatAge);
  ~HealthMonitor();

  // Looks now instead of at the next tick, for callers that have just drained.
  void Check();

 private:
  void Loop();
  // False: the monitor is stopping.
  bool WaitForTick();

  const ServerCore& core_;
  grpc::HealthCheckServiceInterface* const health_;
  const std::vector<std::string> services_;
  const double max_heartbeat_age_;
  std::function<void()> on_fatal_;  // used by the monitor's thread alone

  Mutex mutex_;
  CondVar wake_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool serving_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace fox
