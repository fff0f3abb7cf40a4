// MetricsServer over prometheus-cpp: see metrics_server.h.
#include "server/metrics/metrics_server.h"

#include <exception>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "prometheus/exposer.h"
#include "server/metrics/metrics_collector.h"

namespace fox {
namespace {

// A scrape takes a millisecond. Two that stall leave nobody for a third until they time out.
constexpr const char* kThreads = "2";
constexpr const char* kTimeoutMs = "3000";
constexpr const char* kWaitingConnections = "20";  // for a thread; more wait in the backlog
constexpr const char* kMaxRequestBytes = "4096";

std::string Address(const MetricsOptions& options) {
  const bool bare_v6 = absl::StrContains(options.host, ":") && options.host.front() != '[';
  return bare_v6 ? absl::StrCat("[", options.host, "]:", options.port)
                 : absl::StrCat(options.host == "localhost" ? "127.0.0.1" : options.host, ":",
                                options.port);
}

}  // namespace

struct MetricsServer::Impl {
  bool vllm_aliases = true;
  std::shared_ptr<MetricsCollector> collector;
  std::unique_ptr<prometheus::Exposer> exposer;
};

MetricsServer::MetricsServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

// The library's thread looks only every two seconds whether it should end: nobody waits for that,
// and nothing of ours is used meanwhile.
MetricsServer::~MetricsServer() {
  if (impl_->collector != nullptr) impl_->exposer->RemoveCollectable(impl_->collector);
  std::thread([impl = std::move(impl_)] {}).detach();
}

absl::StatusOr<std::unique_ptr<MetricsServer>> MetricsServer::Listen(
    const MetricsOptions& options) {
  auto impl = std::make_unique<Impl>();
  impl->vllm_aliases = options.vllm_aliases;
  try {
    impl->exposer = std::make_unique<prometheus::Exposer>(std::vector<std::string>{
        "listening_ports", Address(options), "num_threads", kThreads, "request_timeout_ms",
        kTimeoutMs, "connection_queue", kWaitingConnections, "max_request_size", kMaxRequestBytes,
        "enable_keep_alive", "no"});
  } catch (const std::exception&) {  // the library's one way of saying it
    return absl::UnavailableError(
        absl::StrCat("--metrics-port: cannot listen on ", Address(options)));
  }
  return std::unique_ptr<MetricsServer>(new MetricsServer(std::move(impl)));
}

void MetricsServer::Expose(const ServerCore& core, const StepMetrics& steps) {
  impl_->collector = std::make_shared<MetricsCollector>(core, steps, impl_->vllm_aliases);
  impl_->exposer->RegisterCollectable(impl_->collector);
}

int MetricsServer::port() const { return impl_->exposer->GetListeningPorts().front(); }

}  // namespace fox
