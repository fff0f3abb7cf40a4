// GrpcServer: the port: services, channel settings, health and reflection, from start to drained
// stop. Read services.h next.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "absl/status/statusor.h"
#include "server/calls/server_core.h"
#include "server/process/connection_acceptor.h"
#include "server/process/tls_files.h"

namespace fox {

struct GrpcServerOptions {
  AcceptorOptions listen;
  int max_message_mb = 5;
  int max_streams = 4096;  // of one connection
  // For gRPC's own buffers; twice the memory that calls may hold once their messages are here.
  int64_t receive_memory_bytes = int64_t{512} << 20;
  int max_connection_age_s = 0;     // 0: no limit; running calls finish
  int max_connection_idle_s = 300;  // without a call; 0: no limit
  double step_timeout = 60;         // seconds; see HealthMonitor
  // An address for the admin service alone; unset: only `services` says if it is offered.
  std::optional<AcceptorOptions> admin;
  // A subset of these six.
  std::set<std::string> services = {"inference", "tokenizer", "info",
                                    "admin",     "health",    "reflection"};
  std::shared_ptr<TlsFiles> tls;  // of both ports; null: plain text
};

// The sockets of its ports, which listen.
struct GrpcListeners {
  std::unique_ptr<ConnectionAcceptor> main, admin;  // admin null: it has no address
};

// port, admin_port and serving may be called from any thread, the others from one at a time.
class GrpcServer {
 public:
  // Listens as the options say; clients wait until Start. Unavailable: a port is taken.
  static absl::StatusOr<GrpcListeners> Listen(const GrpcServerOptions& options);
  // Serves the connections of `listeners` from now on; if they are empty, of Listen's. `core` must
  // be ready and outlive the server. `on_fatal` is called once, from a thread of its own, when the
  // engine has failed or hangs.
  static absl::StatusOr<std::unique_ptr<GrpcServer>> Start(ServerCore& core,
                                                           const GrpcServerOptions& options,
                                                           std::function<void()> on_fatal,
                                                           GrpcListeners listeners = {});
  ~GrpcServer();  // Stop(0)

  int port() const;
  int admin_port() const;  // 0: the admin service has no address
  // The answer of health. Any thread, also during and after the stop.
  bool serving() const;
  // Health turns NOT_SERVING and new work is Unavailable, at once.
  void Drain();
  // Drains for good. Waits up to `grace_seconds` for running calls and for clients that still read,
  // or until `force`, asked each 10 ms, returns true; then ends the rest with Unavailable and
  // closes the port, at most half a second later. Stops the core's engine. False: its step hangs.
  bool Stop(double grace_seconds, const std::function<bool()>& force = nullptr);

 private:
  struct Impl;
  explicit GrpcServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace fox
