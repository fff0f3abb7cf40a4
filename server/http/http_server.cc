// HttpServer: see http_server.h.
#include "server/http/http_server.h"

#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/http/http_error.h"

namespace fox {
namespace {

// A page of another origin may send forms and plain text without asking; JSON it may not.
bool IsJson(const HttpRequest& head) {
  const absl::string_view type = head.Header("content-type");
  return type.empty() || absl::StartsWithIgnoreCase(type, "application/json");
}

}  // namespace

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Listen(const HttpServerOptions& options) {
  if (!HttpPort::IsBuilt()) {
    return absl::UnimplementedError("--http-port: this program was built without Boost");
  }
  absl::StatusOr<std::unique_ptr<ConnectionAcceptor>> acceptor =
      ConnectionAcceptor::Listen(options.listen);
  if (!acceptor.ok()) return acceptor.status();
  return std::unique_ptr<HttpServer>(new HttpServer(options, *std::move(acceptor)));
}

HttpServer::~HttpServer() { Stop(0); }

void HttpServer::Handle(const std::string& method, const std::string& path, Handler handler) {
  routes_[path][method] = std::move(handler);
}

void HttpServer::AddPage(const std::string& path, HttpAnswer page) {
  Handle("GET", path, [page = std::move(page)](const std::shared_ptr<HttpExchange>& exchange) {
    exchange->Answer(page);
  });
}

void HttpServer::Start() {
  port_ = std::make_unique<HttpPort>(
      options_.port, [this](const HttpRequest& head) { return Refusal(head); },
      [this](std::shared_ptr<HttpExchange> exchange) {
        const Handler* handler = Find(exchange->request);
        (*handler)(std::move(exchange));
      });
  acceptor_->Start([this](int, int descriptor) { port_->Add(descriptor); });
}

void HttpServer::Drain() {
  if (port_ != nullptr) port_->Drain();
}

void HttpServer::Stop(double seconds) {
  acceptor_->Stop();
  if (port_ != nullptr) port_->Stop(seconds);
}

const HttpServer::Handler* HttpServer::Find(const HttpRequest& request) const {
  const auto route = routes_.find(request.path);
  if (route == routes_.end()) return nullptr;
  const auto handler = route->second.find(request.method == "HEAD" ? "GET" : request.method);
  return handler == route->second.end() ? nullptr : &handler->second;
}

std::optional<HttpAnswer> HttpServer::Refusal(const HttpRequest& head) const {
  const auto route = routes_.find(head.path);
  if (route == routes_.end()) {
    return ErrorAnswer(404, "no such path; completions are at POST /v1/completions");
  }
  if (Find(head) == nullptr) {
    HttpAnswer answer = ErrorAnswer(405, "this path does not know the method");
    const auto name = [](std::string* out, const auto& entry) { *out += entry.first; };
    answer.headers.emplace_back("Allow", absl::StrJoin(route->second, ", ", name));
    return answer;
  }
  if (check_) {
    const absl::Status status = check_(head);
    if (!status.ok()) return ErrorAnswer(status);
  }
  if (head.method == "POST" && !IsJson(head)) {
    return ErrorAnswer(415, "the body must be sent as Content-Type: application/json");
  }
  return std::nullopt;
}

}  // namespace fox
