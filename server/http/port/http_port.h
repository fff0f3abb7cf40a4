// HttpPort: HTTP/1.1 on connections that an acceptor hands over, on one thread for all of them.
// Their bytes are read and written by http_socket.h, their requests parsed by http_parser.h.
#pragma once

#include <cstdint>
#include <memory>

#include "server/http/port/http_routes.h"
#include "server/process/tls_files.h"

namespace fox {

struct HttpPortOptions {
  int64_t max_body_bytes = 5 << 20;
  int64_t receive_memory_bytes = int64_t{256} << 20;  // see unfinished_bodies.h
  // Seconds. A head must be whole `head_timeout` after its first byte, a TLS handshake that long
  // after the connection. A body must be whole after `body_timeout` plus the time that its bytes
  // take at 16 KiB/s, and never pauses for longer than `body_timeout`. A connection without a
  // request is closed after `idle_timeout`.
  double head_timeout = 10, body_timeout = 10, idle_timeout = 75;
  double stall_timeout = 30;  // of a write without progress
  double silence = 15;        // without a write, until Call::OnSilence
};

// All methods may be called from any thread.
class HttpPort {
 public:
  // Handlers are called on the port's thread, which starts here.
  HttpPort(const HttpPortOptions& options, std::shared_ptr<const HttpRoutes> routes);
  ~HttpPort();  // Stop(0)
  HttpPort(const HttpPort&) = delete;
  HttpPort& operator=(const HttpPort&) = delete;

  // Takes over a connected socket. Not after Stop. `tls` null: it speaks plain text.
  void Add(int descriptor, std::shared_ptr<const TlsMaterial> tls = nullptr);
  // From now on connections end with their next answer.
  void Drain();
  // Drain; closes connections without a request, waits up to `seconds` for answers on their way,
  // closes the others. Handlers are not called any more.
  void Stop(double seconds);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace fox
