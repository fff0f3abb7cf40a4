// MetricsServer where prometheus-cpp or Boost was not found: it says so.
#include "server/metrics/metrics_server.h"

namespace fox {

struct MetricsServer::Impl {};

absl::StatusOr<std::unique_ptr<MetricsServer>> MetricsServer::Listen(const MetricsOptions&) {
  return absl::UnimplementedError(
      "--metrics-port: built without prometheus-cpp or Boost (apt: prometheus-cpp-dev, "
      "libboost-dev)");
}

MetricsServer::~MetricsServer() = default;

void MetricsServer::Expose(const ServerCore&, const StepMetrics&) {}

int MetricsServer::port() const { return -1; }

}  // namespace fox
