// HttpServer: the HTTP port: its sockets, its table of routes, and its refusals before a body is
// read. The routes of OpenAI's API are in openai_service.h; read that next.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "server/calls/access/access.h"
#include "server/http/port/http_exchange.h"
#include "server/http/port/http_port.h"
#include "server/process/connection_acceptor.h"
#include "server/process/peer_address.h"

namespace fox {

struct HttpServerOptions {
  AcceptorOptions listen;
  HttpPortOptions port;
  std::shared_ptr<TlsFiles> tls;  // null: plain text
  // Names, in lower case, that a request's Host may have beside this machine's own; "*": any.
  // Empty: Host is checked only on loopback without tokens.
  std::vector<std::string> allowed_hosts;
};

// Methods are called by one thread at a time.
class HttpServer {
 public:
  // Binds and listens. From here on clients connect and wait. Unavailable: the port is taken.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Listen(const HttpServerOptions& options);
  ~HttpServer();  // Stop(0)

  int port() const { return acceptor_->port(); }

  // Before Start: `handler` answers `method` on exactly `path`, without a slash at its end. A
  // `path` that ends with "/" stands for all paths below it without a route of their own. A route
  // for GET answers HEAD, too. Other methods there are refused with 405, other paths with 404.
  // `needed`: the privilege that a client needs; see SetAccess.
  void Handle(const std::string& method, const std::string& path, HttpHandler handler,
              Privilege needed = Privilege::kUser);
  // Before Start: an answer that is always the same.
  void AddPage(const std::string& path, HttpAnswer page, Privilege needed = Privilege::kPublic);
  // Before Start: the message of the 404 for `path`, which clients often ask for and which is not
  // here. A path that ends with "/" stands for every path below it.
  void Explain(const std::string& path, const std::string& message, const char* code);
  // Before Start. `access`, not null, checks each request before its body is read. `client_of`
  // names the client that budgets charge, by default UnverifiedClientOf its peer.
  using ClientOf = std::function<uint64_t(const HttpRequest& head)>;
  void SetAccess(std::shared_ptr<Access> access, ClientOf client_of) {
    access_ = std::move(access);
    client_of_ = std::move(client_of);
  }

  // Answers from now on. Once.
  void Start();
  // From now on connections end with their next answer.
  void Drain();
  // Closes the port, waits up to `seconds` for answers on their way, then closes connections.
  void Stop(double seconds);

 private:
  HttpServer(const HttpServerOptions& options, std::unique_ptr<ConnectionAcceptor> acceptor)
      : options_(options),
        local_(IsLoopback(options.listen.host)),
        acceptor_(std::move(acceptor)) {}

  struct Route {
    HttpHandler handler;
    Privilege needed = Privilege::kAdmin;
  };
  struct Explanation {
    std::string message;
    const char* code = nullptr;
  };
  using Methods = std::map<std::string, Route>;
  // Null: the path has no routes.
  const std::pair<const std::string, Methods>* FindPath(const std::string& path) const;
  static const Route* Find(const Methods& methods, const std::string& method);
  bool AllowsHost(absl::string_view host) const;
  HttpAnswer NotFound(const std::string& path) const;
  // The refusal of a request; none: it is admitted, and has its handler now.
  std::optional<HttpAnswer> CheckHead(HttpRequest* head) const;

  const HttpServerOptions options_;
  const bool local_;
  const std::unique_ptr<ConnectionAcceptor> acceptor_;
  std::map<std::string, Methods> routes_;            // by path, by method
  std::map<std::string, Explanation> explanations_;  // by path
  std::shared_ptr<Access> access_ = std::make_shared<Access>();
  ClientOf client_of_ = [](const HttpRequest& head) { return UnverifiedClientOf(head.peer); };
  std::unique_ptr<HttpPort> port_;
};

}  // namespace fox
