// MetricsServer over HttpServer: see metrics_server.h.
#include "server/metrics/metrics_server.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "prometheus/text_serializer.h"
#include "server/http/http_server.h"
#include "server/metrics/metrics_collector.h"

namespace fox {
namespace {

constexpr int64_t kMaxBodyBytes = 4 << 10;  // a scrape has none

}  // namespace

struct MetricsServer::Impl {
  bool vllm_aliases = true;
  std::unique_ptr<MetricsCollector> collector;
  std::unique_ptr<HttpServer> http;  // stops before the collector goes
};

MetricsServer::MetricsServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

MetricsServer::~MetricsServer() = default;

absl::StatusOr<std::unique_ptr<MetricsServer>> MetricsServer::Listen(
    const MetricsOptions& options) {
  HttpServerOptions http;
  http.listen.host = options.host;
  http.listen.port = options.port;
  http.listen.max_connections = options.max_connections;
  http.port.max_body_bytes = http.port.receive_memory_bytes = kMaxBodyBytes;
  absl::StatusOr<std::unique_ptr<HttpServer>> server = HttpServer::Listen(http);
  if (!server.ok()) {
    return absl::Status(server.status().code(),
                        absl::StrCat("--metrics-port: ", server.status().message()));
  }
  auto impl = std::make_unique<Impl>();
  impl->vllm_aliases = options.vllm_aliases;
  impl->http = *std::move(server);
  return std::unique_ptr<MetricsServer>(new MetricsServer(std::move(impl)));
}

void MetricsServer::Expose(const ServerCore& core, const StepMetrics& steps) {
  impl_->collector = std::make_unique<MetricsCollector>(core, steps, impl_->vllm_aliases);
  const auto scrape = [&collector = *impl_->collector](const std::shared_ptr<HttpExchange>& e) {
    HttpAnswer answer;
    answer.content_type = "text/plain; version=0.0.4; charset=utf-8";
    answer.body = prometheus::TextSerializer().Serialize(collector.Collect());
    e->Answer(std::move(answer));
  };
  impl_->http->Handle("GET", "/metrics", scrape, Privilege::kPublic);
  impl_->http->Start();
}

int MetricsServer::port() const { return impl_->http->port(); }

}  // namespace fox
