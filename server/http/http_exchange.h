// HttpExchange: one HTTP request and the way its answer is written, as messages and as bytes; no
// library in sight. A route's handler gets one; what has to live until the last byte is written
// attaches itself as its HttpCall. Read http_server.h next.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace fox {

using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

struct HttpRequest {
  std::string method;   // "POST"
  std::string path;     // as it came, without the query and a slash at its end
  std::string query;    // without "?", as it came
  HttpHeaders headers;  // names in lower case
  std::string peer;     // "ipv4:127.0.0.1:4711", as gRPC writes it
  uint64_t client = 0;  // whose it is, to budgets
  std::string body;     // whole

  // The value of the header that comes at this place among those of the name, from 0; a view of
  // null: none. `name` in lower case.
  absl::string_view Header(absl::string_view name, int place = 0) const;
};

struct HttpAnswer {
  int status = 200;
  std::string content_type = "application/json";
  HttpHeaders headers;
  std::string body;
  bool close = false;  // the connection ends with this answer
};

// Sets path and query from a target: of a server ("/v1/models?x=1") or of a proxy ("http://h/v1"),
// whose host is the request's then, whatever its headers say (RFC 9112, 3.2.2). Percent-encodings
// are left: a proxy's rules see what routes see. False: it is neither, nor "*".
bool SetTarget(absl::string_view target, HttpRequest* request);

// %41 is A; what is no such code stays.
std::string PercentDecoded(absl::string_view text);

enum class BodyFraming {
  kLength,   // the body is whole
  kChunked,  // a stream
  kClose,    // a stream to a client of HTTP/1.0: it ends with the connection
};

// Status line and headers; the body follows.
std::string AnswerHead(const HttpAnswer& answer, BodyFraming framing);

// One chunk of a chunked body; "" for no bytes, which would end it.
std::string Chunk(absl::string_view bytes);
inline constexpr char kLastChunk[] = "0\r\n\r\n";

// What an exchange works for. Methods are called on the HTTP thread and must not block.
class HttpCall {
 public:
  virtual ~HttpCall() = default;
  // The connection has taken the bytes of BeginStream or Write; the next may follow.
  virtual void OnWritten() {}
  // Nothing was written for HttpPortOptions::silence: a proxy may soon close the connection.
  virtual void OnSilence() {}
  // The client went away (Cancelled) or has stopped reading (Aborted): nothing more is written.
  // Comes at most once, and not after the last byte was written.
  virtual void OnClosed(const absl::Status& reason) = 0;
};

// Methods may be called from any thread; after OnClosed they do nothing. Either Answer; or
// BeginStream, then Write one at a time, each after OnWritten, and End, which waits for nothing.
class HttpExchange {
 public:
  virtual ~HttpExchange() = default;

  HttpRequest request;  // used by its handler

  // In the handler, on the HTTP thread. The connection lets `call` go after the last byte was
  // written, or after OnClosed.
  virtual void Attach(std::shared_ptr<HttpCall> call) = 0;
  virtual void Answer(HttpAnswer answer) = 0;
  // An answer without an end yet; its body is what comes first.
  virtual void BeginStream(HttpAnswer head) = 0;
  virtual void Write(std::string bytes) = 0;
  // The last bytes, or none.
  virtual void End(std::string bytes) = 0;
  // Closes the connection though a write hangs; OnClosed follows.
  virtual void Abandon() = 0;
};

}  // namespace fox
