// HttpRoutes: the table, and the checks of a head. See http_routes.h.
#include "server/http/port/http_routes.h"

#include <unistd.h>

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/core/check.h"
#include "server/calls/server_core.h"
#include "server/http/port/http_error.h"
#include "server/process/peer_address.h"

namespace fox {
namespace {

// True for JSON, which a page of another origin may not send without asking; forms, plain text and
// bodies without a type it may.
bool IsJson(const HttpRequest& head) {
  const absl::string_view type = head.Header("content-type");
  const absl::string_view media = absl::StripAsciiWhitespace(type.substr(0, type.find(';')));
  return absl::EqualsIgnoreCase(media, "application/json");
}

// True if a body follows, even an empty one in chunks.
bool HasBody(const HttpRequest& head) {
  const absl::string_view length = head.Header("content-length");
  return !head.Header("transfer-encoding").empty() || (!length.empty() && length != "0");
}

// "": none, or several: a proxy may have judged by another one.
absl::string_view AuthorizationOf(const HttpRequest& head) {
  const auto count = std::count_if(head.headers.begin(), head.headers.end(),
                                   [](const auto& h) { return h.first == "authorization"; });
  return count == 1 ? head.Header("authorization") : "";
}

// Anthropic's clients send the token of Authorization: Bearer as X-Api-Key. With both,
// Authorization counts: the key may be for another server.
void TakeApiKey(HttpRequest* head) {
  const bool several = head->Header("x-api-key", 1).data() != nullptr;
  const absl::string_view key = head->Header("x-api-key");
  if (several || key.empty() || head->Header("authorization").data() != nullptr) return;
  head->headers.emplace_back("authorization", absl::StrCat("Bearer ", key));
}

// True if a host is an address, localhost or this machine's name. A browser sends another name for
// a page that has had its own name resolved to this machine (DNS rebinding).
bool NamesThisMachine(absl::string_view host) {
  if (host.empty()) return true;
  if (host.front() == '[') return host.find_first_not_of("[]0123456789abcdef:.") == host.npos;
  const bool address = std::all_of(host.begin(), host.end(), [](char c) {
    return absl::ascii_isdigit(static_cast<unsigned char>(c)) || c == '.';
  });
  if (address || absl::EqualsIgnoreCase(host, "localhost")) return true;
  char own[256] = {};
  gethostname(own, sizeof(own) - 1);
  return absl::EqualsIgnoreCase(host, own);
}

}  // namespace

void HttpRoutes::Handle(const std::string& method, const std::string& path, HttpHandler handler,
                        Privilege needed) {
  FOX_CHECK(handler != nullptr);
  FOX_CHECK(!path.empty() && path.front() == '/');
  routes_[path][method] = {std::move(handler), needed};
}

void HttpRoutes::AddPage(const std::string& path, HttpAnswer page, Privilege needed) {
  const auto answer = [page = std::move(page)](const std::shared_ptr<HttpExchange>& exchange) {
    exchange->Answer(page);
  };
  Handle("GET", path, answer, needed);
}

const std::pair<const std::string, HttpRoutes::Methods>* HttpRoutes::FindPath(
    const std::string& path) const {
  const auto exact = routes_.find(path);
  if (exact != routes_.end()) return &*exact;
  for (const auto& known : routes_) {
    if (known.first.size() > 1 && known.first.back() == '/' &&
        absl::StartsWith(path, known.first)) {
      return &known;
    }
  }
  return nullptr;
}

const HttpRoutes::Route* HttpRoutes::Find(const Methods& methods, const std::string& method) {
  const auto route = methods.find(method == "HEAD" ? "GET" : method);
  return route == methods.end() ? nullptr : &route->second;
}

void HttpRoutes::Explain(const std::string& path, const std::string& message, const char* code) {
  FOX_CHECK(!path.empty());
  explanations_[path] = {message, code};
}

HttpAnswer HttpRoutes::NotFound(const std::string& path) const {
  for (const auto& [known, why] : explanations_) {
    if (path == known || (known.back() == '/' && absl::StartsWith(path, known))) {
      return ErrorAnswer(404, why.message, why.code);
    }
  }
  return ErrorAnswer(404, "no such path", kUnknownUrl);
}

// A list of allowed hosts holds even with tokens, because the operator asked for it.
bool HttpRoutes::AllowsHost(absl::string_view host) const {
  const std::vector<std::string>& names = allowed_hosts_;
  const bool has_tokens = core_ != nullptr && core_->access->needs_user_token();
  if (names.empty() && (!local_ || has_tokens)) return true;
  const bool bracket = !host.empty() && host.front() == '[';
  const std::string name = absl::AsciiStrToLower(bracket ? host : host.substr(0, host.rfind(':')));
  return NamesThisMachine(name) || std::any_of(names.begin(), names.end(), [&](const auto& known) {
           return known == "*" || known == name;
         });
}

bool HttpRoutes::admits_administrators() const {
  const Access& access = *core_->access;
  return access.needs_admin_token() || (local_ && !access.needs_user_token());
}

HttpHeaders HttpRoutes::CorsHeaders(const HttpRequest& head) const {
  const std::string origin = absl::AsciiStrToLower(head.Header("origin"));
  const auto has = [this](const std::string& name) {
    return std::find(cors_origins_.begin(), cors_origins_.end(), name) != cors_origins_.end();
  };
  if (origin.empty() || !(has(origin) || has("*"))) return {};
  return {
      {"Access-Control-Allow-Origin", std::string(head.Header("origin"))},
      {"Access-Control-Expose-Headers", "X-Request-Id, Request-Id, Retry-After, Retry-After-Ms"},
      {"Vary", "Origin"}};
}

// Clients of the APIs send headers of their own: all that the browser names are allowed.
HttpAnswer HttpRoutes::Preflight(const HttpRequest& head, const std::string& methods) {
  HttpAnswer answer;
  answer.headers = {{"Access-Control-Allow-Methods", methods}, {"Access-Control-Max-Age", "600"}};
  const absl::string_view wanted = head.Header("access-control-request-headers");
  if (!wanted.empty()) answer.headers.emplace_back("Access-Control-Allow-Headers", wanted);
  return answer;
}

std::optional<HttpAnswer> HttpRoutes::CheckHead(HttpRequest* request) const {
  const HttpRequest& head = *request;
  TakeApiKey(request);
  request->client = core_ == nullptr ? UnverifiedClientOf(head.peer)
                                     : core_->ClientOf(head.peer, CallerHeadersOf(head, *core_));
  if (!AllowsHost(head.Header("host"))) {
    return ErrorAnswer(403,
                       "Host: not a name of this machine; ask for its address, or add the name to "
                       "--allowed-hosts");
  }
  const auto* const path = FindPath(head.path);
  if (path == nullptr) return NotFound(head.path);
  const Route* route = Find(path->second, head.method);
  if (route == nullptr) {
    const auto name = [](std::string* out, const auto& entry) { *out += entry.first; };
    const std::string methods = absl::StrJoin(path->second, ", ", name);
    const bool asks = head.method == "OPTIONS" && !HasBody(head) &&
                      !head.Header("access-control-request-method").empty();
    if (asks && !CorsHeaders(head).empty()) return Preflight(head, methods);
    HttpAnswer answer =
        ErrorAnswer(405, absl::StrCat("this path does not know the method; use ", methods));
    answer.headers.emplace_back("Allow", methods);
    return answer;
  }
  const absl::Status allowed =
      core_ == nullptr
          ? absl::OkStatus()
          : core_->access->Check(route->needed, path->first.c_str(), AuthorizationOf(head));
  if (!allowed.ok()) return ErrorAnswer(allowed);
  // A client without a token must not fill the budget of bodies with a body that nothing reads.
  if (head.method != "POST" && HasBody(head)) return ErrorAnswer(400, "this method takes no body");
  if (head.method == "POST" && !IsJson(head)) {
    return ErrorAnswer(415,
                       "the body must be sent as Content-Type: application/json (curl --json)");
  }
  const absl::string_view coding = head.Header("content-encoding");
  if (!coding.empty() && !absl::EqualsIgnoreCase(coding, "identity")) {
    HttpAnswer answer = ErrorAnswer(415, "Content-Encoding: must be absent; bodies are plain");
    answer.headers.emplace_back("Accept-Encoding", "identity");  // RFC 9110, 15.5.16
    return answer;
  }
  request->handler = &route->handler;
  return std::nullopt;
}

CallerHeaders CallerHeadersOf(const HttpRequest& request, const ServerCore& core) {
  const std::string& client = core.client_metadata();
  CallerHeaders headers;
  headers.authorization = request.Header("authorization");
  headers.traceparent = request.Header("traceparent");
  if (client.empty()) return headers;
  headers.client = request.Header(client);
  headers.client_twice = request.Header(client, 1).data() != nullptr;
  return headers;
}

}  // namespace fox
