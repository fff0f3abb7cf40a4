// HttpRoutes: a port's table of paths, and its refusals before a body is read. The routes of
// OpenAI's API are in openai_service.h.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "server/calls/access/access.h"
#include "server/calls/access/call_info.h"
#include "server/http/port/http_exchange.h"

namespace fox {

class ServerCore;

// Constant once its port has started.
class HttpRoutes {
 public:
  // `cors_origins`: origins, in lower case, whose pages may use the port; "*": any.
  // `local`: the port listens on loopback. `allowed_hosts`: names, in lower case, that a request's
  // Host may have beside this machine's own; "*": any. Empty: Host is checked only on loopback
  // without tokens.
  HttpRoutes(bool local, std::vector<std::string> allowed_hosts,
             std::vector<std::string> cors_origins = {})
      : local_(local),
        allowed_hosts_(std::move(allowed_hosts)),
        cors_origins_(std::move(cors_origins)) {}

  // `handler` answers `method` on exactly `path`, without a slash at its end. A `path` that ends
  // with "/" stands for all paths below it without a route of their own. A route for GET answers
  // HEAD, too. Other methods there are refused with 405, other paths with 404. `needed`: the
  // privilege that a client needs; see SetCore.
  void Handle(const std::string& method, const std::string& path, HttpHandler handler,
              Privilege needed = Privilege::kUser);
  // Adds an answer that is always the same.
  void AddPage(const std::string& path, HttpAnswer page, Privilege needed = Privilege::kPublic);
  // Sets the message of the 404 for `path`, which clients often ask for and which is not here. A
  // path that ends with "/" stands for every path below it.
  void Explain(const std::string& path, const std::string& message, const char* code);
  // From now on `core` checks tokens and names the clients that budgets charge. Without a core
  // there are no tokens, and an address is a client.
  void SetCore(ServerCore* core) { core_ = core; }

  // True if administrators have tokens, or need none because only this machine reaches the port and
  // clients need none either. REQUIRES: SetCore.
  bool admits_administrators() const;

  // The headers that let a page of an allowed origin read the answer (Fetch standard, CORS); none:
  // the request is not of such a page.
  HttpHeaders CorsHeaders(const HttpRequest& head) const;

  // Checks a request whose head has come. The refusal, or the answer to a browser that asks before
  // it sends the request of a page; none: it is admitted, and has its client and
  // its handler now.
  std::optional<HttpAnswer> CheckHead(HttpRequest* head) const;

 private:
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
  static HttpAnswer Preflight(const HttpRequest& head, const std::string& methods);

  const bool local_;
  const std::vector<std::string> allowed_hosts_, cors_origins_;
  std::map<std::string, Methods> routes_;            // by path, by method
  std::map<std::string, Explanation> explanations_;  // by path
  ServerCore* core_ = nullptr;
};

// The headers of a request that ServerCore reads.
CallerHeaders CallerHeadersOf(const HttpRequest& request, const ServerCore& core);

}  // namespace fox
