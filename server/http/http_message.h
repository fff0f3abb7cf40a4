// HTTP messages as bytes: what of a request's target is its path, and how an answer is written.
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "server/http/http_exchange.h"

namespace fox {

// Sets path and query from a target: of a server ("/v1/models?x=1") or of a proxy ("http://h/v1").
void SetTarget(absl::string_view target, HttpRequest* request);

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

}  // namespace fox
