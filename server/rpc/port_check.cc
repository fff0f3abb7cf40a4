// CheckPort: a call in frames of HTTP/2 (RFC 9113, sections 3.4, 4.1, 6.2 and 6.5; RFC 7541,
// section 6). See port_check.h.
#include "server/rpc/port_check.h"

#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <string>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "engine/base/steady_clock.h"

namespace fox {
namespace {

constexpr size_t kFrameHead = 9;
constexpr char kHeaders = 1;

// Empty settings, and a call of grpc.health.v1 that ends at once, of fields that go into no table:
// ":method" and ":scheme" by index, then names by index or in full. It need not succeed.
constexpr char kFirstBytes[] =
    "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    "\0\0\0\4\0\0\0\0\0"
    "\0\0\x4b\1\5\0\0\0\1"
    "\x83\x86"
    "\4\x1c/grpc.health.v1.Health/Check"
    "\1\x09localhost"
    "\x0f\x10\x10"
    "application/grpc"
    "\0\2te\x08trailers";

bool HoldsAnswer(const std::string& frames) {
  for (size_t at = 0; at + kFrameHead <= frames.size();) {
    const auto byte = [&](size_t i) { return static_cast<unsigned char>(frames[at + i]); };
    if (frames[at + 3] == kHeaders) return true;
    at += kFrameHead + (size_t{byte(0)} << 16 | size_t{byte(1)} << 8 | byte(2));
  }
  return false;
}

// True: an answer or the connection's end has come.
bool IsAnswered(int socket, double seconds) {
  const double end = SteadySeconds() + seconds;
  std::string received;
  for (;;) {
    const double left = end - SteadySeconds();
    if (left <= 0) return false;
    pollfd ready{socket, POLLIN, 0};
    if (poll(&ready, 1, static_cast<int>(1000 * left) + 1) <= 0) continue;
    std::array<char, 4096> buffer{};
    const ssize_t count = recv(socket, buffer.data(), buffer.size(), 0);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return true;
    received.append(buffer.data(), static_cast<size_t>(count));
    if (HoldsAnswer(received)) return true;
  }
}

}  // namespace

absl::Status CheckPort(const ConnectionAcceptor::Sink& sink, double seconds) {
  sockaddr_in loopback{};
  loopback.sin_family = AF_INET;
  loopback.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  auto* address = reinterpret_cast<sockaddr*>(&loopback);
  socklen_t length = sizeof(loopback);
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int client = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const absl::Cleanup close_both = [=] {
    close(listener);
    close(client);
  };
  int accepted = -1;
  if (bind(listener, address, length) == 0 && listen(listener, 1) == 0 &&
      getsockname(listener, address, &length) == 0 && connect(client, address, length) == 0) {
    accepted = accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
  }
  if (accepted < 0) {
    return absl::UnavailableError(
        absl::StrCat("the gRPC port cannot be tried out: ", std::strerror(errno)));
  }
  send(client, kFirstBytes, sizeof(kFirstBytes) - 1, MSG_NOSIGNAL);
  sink(listener, accepted);
  if (!IsAnswered(client, seconds)) {
    return absl::UnavailableError("gRPC does not answer: memory or threads ran out");
  }
  return absl::OkStatus();
}

}  // namespace fox
