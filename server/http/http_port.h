// HttpPort: HTTP/1.1 on connections that an acceptor hands over, on one thread for all of them.
// Their bytes are read and written by http_socket.h, their requests parsed by http_parser.h.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "server/http/http_exchange.h"
#include "server/process/tls_files.h"

namespace fox {

struct HttpPortOptions {
  int64_t max_body_bytes = 5 << 20;
  int64_t receive_memory_bytes = int64_t{256} << 20;  // see unfinished_bodies.h
  // Seconds. A head must be whole that long after its first byte, a TLS handshake that long after
  // the connection; a body too, plus the time that its bytes take at 16 KiB/s, and no longer than
  // that without a byte; a connection without a request is closed after `idle`.
  double head_timeout = 10, body_timeout = 10, idle_timeout = 75;
  double stall_timeout = 30;  // of a write without progress
  double silence = 15;        // without a write, until HttpCall::OnSilence
};

// All methods may be called from any thread.
class HttpPort {
 public:
  // A request's head has arrived, and nothing of its body: an answer refuses it. Sets its client.
  using Gate = std::function<std::optional<HttpAnswer>(HttpRequest* head)>;
  // A request is whole.
  using Handler = std::function<void(std::shared_ptr<HttpExchange> exchange)>;

  // Both are called on the port's thread, which starts here.
  HttpPort(const HttpPortOptions& options, Gate gate, Handler handler);
  ~HttpPort();  // Stop(0)
  HttpPort(const HttpPort&) = delete;
  HttpPort& operator=(const HttpPort&) = delete;

  // Takes over a connected socket. Not after Stop. `tls` null: it speaks plain text.
  void Add(int descriptor, std::shared_ptr<const TlsMaterial> tls = nullptr);
  // From now on connections end with their next answer.
  void Drain();
  // Drain; closes what has no request, waits up to `seconds` for answers on their way, closes
  // everything. Handlers are not called any more.
  void Stop(double seconds);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace fox
