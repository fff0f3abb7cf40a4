// HttpServer: see http_server.h.
#include "server/http/port/http_server.h"

#include <utility>

#include "server/process/peer_address.h"

namespace fox {

HttpServer::HttpServer(const HttpServerOptions& options,
                       std::unique_ptr<ConnectionAcceptor> acceptor)
    : options_(options),
      acceptor_(std::move(acceptor)),
      routes_(std::make_shared<HttpRoutes>(IsLoopback(options.listen.host), options.allowed_hosts,
                                           options.cors_origins)) {}

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Listen(const HttpServerOptions& options) {
  absl::StatusOr<std::unique_ptr<ConnectionAcceptor>> acceptor =
      ConnectionAcceptor::Listen(options.listen);
  if (!acceptor.ok()) return acceptor.status();
  return std::unique_ptr<HttpServer>(new HttpServer(options, *std::move(acceptor)));
}

HttpServer::~HttpServer() { Stop(0); }

void HttpServer::Start() {
  FOX_CHECK(port_ == nullptr);
  port_ = std::make_unique<HttpPort>(options_.port, routes_);
  acceptor_->Start([this](int, int descriptor) {
    if (options_.tls != nullptr) options_.tls->Reload();
    port_->Add(descriptor, options_.tls == nullptr ? nullptr : options_.tls->Current());
  });
}

void HttpServer::Drain() {
  if (port_ != nullptr) port_->Drain();
}

void HttpServer::Stop(double seconds) {
  acceptor_->Stop();
  if (port_ != nullptr) port_->Stop(seconds);
}

}  // namespace fox
