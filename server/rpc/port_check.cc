// CheckPort: see port_check.h. Frames are those of RFC 9113, sections 3.4, 4.1, 6.2 and 6.5; fields
// those of RFC 7541, section 6.
#include "server/rpc/port_check.h"

#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/request/steady_clock.h"

namespace fox {
namespace {

constexpr size_t kFrameHead = 9;
constexpr char kHeaders = 1;

// A descriptor that is closed at the end, unless it is taken.
class Socket {
 public:
  explicit Socket(int descriptor) : descriptor_(descriptor) {}
  ~Socket() {
    if (descriptor_ >= 0) close(descriptor_);
  }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  int get() const { return descriptor_; }
  int Release() { return std::exchange(descriptor_, -1); }

 private:
  int descriptor_;
};

// A field that goes into no table; `name` as it is coded: an index into the static table, or text.
std::string HeaderField(const std::string& name, const std::string& value) {
  return name + static_cast<char>(value.size()) + value;
}

// Empty settings, and a call of grpc.health.v1 that ends at once. It need not succeed.
std::string FirstBytes() {
  const std::string settings("\0\0\0\4\0\0\0\0\0", kFrameHead);
  const std::string post_http = "\x83\x86";
  const std::string fields = post_http + HeaderField("\4", "/grpc.health.v1.Health/Check") +
                             HeaderField("\1", "localhost") +
                             HeaderField("\x0f\x10", "application/grpc") +
                             HeaderField(std::string("\0\2te", 4), "trailers");
  std::string head("\0\0\0\1\5\0\0\0\1", kFrameHead);  // ends its fields and stream 1
  head[2] = static_cast<char>(fields.size());
  return "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + settings + head + fields;
}

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
  const Socket listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const Socket client(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (bind(listener.get(), address, length) != 0 || listen(listener.get(), 1) != 0 ||
      getsockname(listener.get(), address, &length) != 0 ||
      connect(client.get(), address, length) != 0) {
    return absl::UnavailableError(
        absl::StrCat("the gRPC port cannot be tried out: ", std::strerror(errno)));
  }
  Socket accepted(accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  const std::string bytes = FirstBytes();
  if (accepted.get() < 0 || send(client.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) < 0) {
    return absl::UnavailableError(
        absl::StrCat("the gRPC port cannot be tried out: ", std::strerror(errno)));
  }
  sink(listener.get(), accepted.Release());
  if (!IsAnswered(client.get(), seconds)) {
    return absl::UnavailableError("gRPC does not answer: memory or threads ran out");
  }
  return absl::OkStatus();
}

}  // namespace fox
