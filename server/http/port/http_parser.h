// HttpParser: the bytes of a connection become requests. Beast's parser, bounded: a head of at most
// 16 KiB, a body that grows with its bytes, whatever its Content-Length claims.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "server/http/port/http_exchange.h"

namespace fox {

// Not thread-safe. Without a request under way it holds next to nothing.
class HttpParser {
 public:
  enum class Step {
    kMore,     // all usable bytes were taken; more are needed
    kHead,     // the head has become whole: `request` has it
    kWhole,    // the request has become whole
    kRefused,  // the bytes are no request, or too many: see refusal
  };

  explicit HttpParser(int64_t max_body_bytes);
  ~HttpParser();

  // Takes bytes from the front of `in`, up to the end of a head or of a request.
  Step Advance(std::string* in);

  HttpRequest request;  // from kHead on
  // True if a request is under way: a byte of it has come.
  bool begun() const { return beast_ != nullptr; }
  size_t body_bytes() const;
  // From kHead on.
  bool whole() const;
  bool keep_alive() const { return keep_alive_; }
  bool old_client() const { return old_client_; }  // HTTP/1.0
  // Call after kWhole and kRefused: the next request may come.
  void Reset();
  HttpAnswer refusal() const { return refusal_; }

 private:
  struct Beast;
  // Advance; `used`: the bytes at the front of `in` that are not needed any more.
  Step Take(absl::string_view in, size_t* used);
  bool HasPlainFraming() const;
  Step Refuse(HttpAnswer answer);
  Step FinishHead();

  const int64_t max_body_bytes_;
  std::unique_ptr<Beast> beast_;
  size_t head_bytes_ = 0;
  bool blank_line_skipped_ = false, head_reported_ = false;
  bool keep_alive_ = true, old_client_ = false;
  HttpAnswer refusal_;
};

}  // namespace fox
