// GrpcServer: the port: services, channel settings, health and reflection, from start to drained
// stop. Read generate_service.h next.
#pragma once

#include <functional>
#include <memory>
#include <set>
#include <string>

#include "absl/status/statusor.h"
#include "server/server_core.h"

namespace fox {

struct GrpcServerOptions {
  std::string host = "127.0.0.1";
  int port = 0;  // 0: any free one
  int max_message_mb = 16;
  int max_connection_age_s = 0;  // 0: no limit; running calls finish
  double step_timeout = 60;      // seconds; see HealthMonitor
  // Of inference, tokenizer, info, admin, health, reflection.
  std::set<std::string> services = {"inference", "tokenizer", "info",
                                    "admin",     "health",    "reflection"};
};

class GrpcServer {
 public:
  // Opens the port: the core must be ready to serve. Unavailable: the port is taken. `core` must
  // outlive the server. `on_fatal` is called once, from a thread of its own, when the engine has
  // failed or hangs.
  static absl::StatusOr<std::unique_ptr<GrpcServer>> Start(ServerCore& core,
                                                           const GrpcServerOptions& options,
                                                           std::function<void()> on_fatal);
  ~GrpcServer();  // Stop(0)

  int port() const;
  // Health turns NOT_SERVING and new work is Unavailable, at once.
  void Drain();
  // Drains, waits up to `grace_seconds` (or until `force` says so, asked each 10 ms) for what runs,
  // ends the rest with Unavailable and closes the port. Stops the core's engine.
  void Stop(double grace_seconds, const std::function<bool()>& force = nullptr);

 private:
  struct Impl;
  explicit GrpcServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace fox
