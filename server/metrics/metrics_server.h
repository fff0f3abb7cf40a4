// MetricsServer: the port that Prometheus scrapes (--metrics-port), GET /metrics in its text
// format. It is an HttpServer of its own, with its limits and on its own thread, where the numbers
// are made: a millisecond. Read metrics_collector.h next.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "server/calls/server_core.h"
#include "server/metrics/step_metrics.h"

namespace fox {

struct MetricsOptions {
  std::string host = "127.0.0.1";
  int port = -1;  // -1: no metrics; 0: any free port
  int64_t max_connections = 256;
  bool vllm_aliases = true;  // the same under the names that vLLM's tools read
};

// Methods are called by one thread at a time.
class MetricsServer {
 public:
  // Binds and listens; scrapes before Expose wait. Unavailable: the port is taken, or the host is
  // no address.
  static absl::StatusOr<std::unique_ptr<MetricsServer>> Listen(const MetricsOptions& options);
  ~MetricsServer();  // waits for the scrape that is being answered

  // From now on answers with the numbers of `core` and `steps`, which must outlive the server.
  // Once.
  void Expose(const ServerCore& core, const StepMetrics& steps);
  int port() const;

 private:
  struct Impl;
  explicit MetricsServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace fox
