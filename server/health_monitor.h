// HealthMonitor: the truth behind grpc.health.v1. SERVING while the engine's loop turns;
// NOT_SERVING when draining, when a step hangs or when the engine has failed. It watches on a
// thread of its own, so a dead engine cannot keep health alive.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "server/server_core.h"

namespace grpc {
class HealthCheckServiceInterface;
}

namespace fox {

class HealthMonitor {
 public:
  // Sets "" and each of `services`. `health` and `core` must outlive the monitor. `on_fatal` is
  // called once, from the monitor's thread, when the engine has failed.
  HealthMonitor(const ServerCore& core, grpc::HealthCheckServiceInterface* health,
                std::vector<std::string> services, std::function<void()> on_fatal);
  ~HealthMonitor();

  // Looks now instead of at the next tick, for callers that have just drained.
  void Check();

 private:
  void Loop();

  const ServerCore& core_;
  grpc::HealthCheckServiceInterface* const health_;
  const std::vector<std::string> services_;
  std::function<void()> on_fatal_;

  std::mutex mutex_;  // guards the following
  std::condition_variable wake_;
  bool stopping_ = false;
  bool serving_ = false;
  std::thread thread_;
};

}  // namespace fox
