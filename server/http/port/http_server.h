// HttpServer: an HTTP port: its socket, its routes and its connections. Read openai_service.h next.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/core/check.h"
#include "server/http/port/http_port.h"
#include "server/http/port/http_routes.h"
#include "server/process/connection_acceptor.h"

namespace fox {

struct HttpServerOptions {
  AcceptorOptions listen;
  HttpPortOptions port;
  std::shared_ptr<TlsFiles> tls;                         // null: plain text
  std::vector<std::string> allowed_hosts, cors_origins;  // see HttpRoutes
};

// Methods are called by one thread at a time.
class HttpServer {
 public:
  // Binds and listens. From here on clients connect and wait. Unavailable: the port is taken.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Listen(const HttpServerOptions& options);
  ~HttpServer();  // Stop(0)

  int port() const { return acceptor_->port(); }
  // Before Start.
  HttpRoutes& routes() {
    FOX_CHECK(port_ == nullptr);
    return *routes_;
  }

  // Answers from now on. Once.
  void Start();
  // From now on connections end with their next answer.
  void Drain();
  // Closes the port, waits up to `seconds` for answers on their way, then closes connections.
  void Stop(double seconds);

 private:
  HttpServer(const HttpServerOptions& options, std::unique_ptr<ConnectionAcceptor> acceptor);

  const HttpServerOptions options_;
  const std::unique_ptr<ConnectionAcceptor> acceptor_;
  const std::shared_ptr<HttpRoutes> routes_;
  std::unique_ptr<HttpPort> port_;
};

}  // namespace fox
