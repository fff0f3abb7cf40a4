// HttpExchange: one HTTP request and the transport of its answer, as messages and as bytes; no
// library in sight. A route's handler gets one, and answers it at once or attaches a call. Read
// http_routes.h next.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "server/calls/transport.h"

namespace fox {

class Call;
class HttpExchange;

// Answers a route's requests. Called on the HTTP thread with a whole request; must not block.
using HttpHandler = std::function<void(std::shared_ptr<HttpExchange> exchange)>;

using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

struct HttpRequest {
  std::string method;                    // "POST"
  std::string path;                      // as it came, without the query and a slash at its end
  std::string query;                     // without "?", as it came
  HttpHeaders headers;                   // names in lower case
  std::string peer;                      // "ipv4:127.0.0.1:4711", as gRPC writes it
  uint64_t client = 0;                   // the client that budgets charge
  std::string body;                      // whole
  const HttpHandler* handler = nullptr;  // set by HttpRoutes::CheckHead

  // The value of the header `name` (in lower case) at `place` among the headers of that name, from
  // 0; a view of null: there is none.
  absl::string_view Header(absl::string_view name, int place = 0) const;
};

struct HttpAnswer {
  int status = 200;
  std::string content_type = "application/json";
  HttpHeaders headers;
  std::string body;
  bool close = false;  // the connection ends with this answer
};

// Sets path and query from a target: as a server gets it ("/v1/models?x=1"), or a proxy
// ("http://h/v1"), whose host replaces the one in the headers (RFC 9112, 3.2.2). Percent-encodings
// stay, so that a proxy's rules and the routes see one path. False: it is neither, nor "*".
bool SetTarget(absl::string_view target, HttpRequest* request);

// Decodes %41 to A; other text stays.
std::string PercentDecoded(absl::string_view text);

enum class BodyFraming {
  kLength,   // the body is whole
  kChunked,  // a stream
  kClose,    // a stream to a client of HTTP/1.0: it ends with the connection
};

// Status line and headers, with `more` behind those of the answer; the body follows.
std::string AnswerHead(const HttpAnswer& answer, BodyFraming framing, const HttpHeaders& more = {});

// One chunk of a chunked body; "" for no bytes, which would end it.
std::string Chunk(absl::string_view bytes);
inline constexpr char kLastChunk[] = "0\r\n\r\n";

// Methods may be called from any thread; after the end of the exchange they do nothing. Either
// Answer, or the methods of Transport for a call.
class HttpExchange : public Transport {
 public:
  HttpRequest request;  // used by its handler
  // Content type and headers of the answer that Write or EndAnswer begins. Set before.
  HttpAnswer head;

  // In the handler, on the HTTP thread. The connection tells `call` what becomes of its answer, and
  // lets it go after OnReleased.
  virtual void AttachCall(std::shared_ptr<Call> call) = 0;
  // A whole answer.
  virtual void Answer(HttpAnswer answer) = 0;
};

}  // namespace fox
