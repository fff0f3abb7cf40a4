// ConnectionAcceptor: see connection_acceptor.h.
#include "server/process/connection_acceptor.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "engine/steady_clock.h"
#include "server/process/log.h"

namespace fox {
namespace {

// For files, the event loops of gRPC, a device's driver.
constexpr int64_t kReservedDescriptors = 64;
constexpr int64_t kMaxDefaultConnections = 8192;
constexpr int kBacklog = 4096;
constexpr int kAcceptedInATurn = 64;
// Unacknowledged data closes a connection after this; what gRPC sets on listeners of its own.
constexpr unsigned kUserTimeoutMs = 20000;
constexpr double kSecondsBetweenLooks = 0.05;
constexpr double kSecondsBetweenLogs = 5;
constexpr int kPauseMs = 20;

int64_t DescriptorLimit() {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  return static_cast<int64_t>(std::min<rlim_t>(limit.rlim_cur, int64_t{1} << 40));
}

// A quarter of a small limit is reserved.
int64_t DefaultCap() {
  const int64_t limit = DescriptorLimit();
  return std::clamp<int64_t>(limit - std::min(kReservedDescriptors, limit / 4), 1,
                             kMaxDefaultConnections);
}

absl::Status Failed(const char* what, const std::string& host, int port, int error) {
  return absl::UnavailableError(
      absl::StrCat("cannot ", what, " ", host, ", port ", port, ": ", std::strerror(error)));
}

void SetPort(sockaddr_storage* address, int port) {
  const uint16_t bytes = htons(static_cast<uint16_t>(port));
  if (address->ss_family == AF_INET6) {
    reinterpret_cast<sockaddr_in6*>(address)->sin6_port = bytes;
  } else {
    reinterpret_cast<sockaddr_in*>(address)->sin_port = bytes;
  }
}

int PortOf(int socket) {
  sockaddr_storage address{};
  socklen_t length = sizeof(address);
  getsockname(socket, reinterpret_cast<sockaddr*>(&address), &length);
  return ntohs(address.ss_family == AF_INET6
                   ? reinterpret_cast<const sockaddr_in6*>(&address)->sin6_port
                   : reinterpret_cast<const sockaddr_in*>(&address)->sin_port);
}

void SetOption(int socket, int level, int name, unsigned value) {
  setsockopt(socket, level, name, &value, sizeof(value));
}

// A listening socket, or -1 and errno. Accepted sockets inherit its options.
int ListenOn(const sockaddr_storage& address, socklen_t length) {
  const int socket = ::socket(address.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (socket < 0) return -1;
  SetOption(socket, SOL_SOCKET, SO_REUSEADDR, 1);
  SetOption(socket, IPPROTO_TCP, TCP_NODELAY, 1);
  SetOption(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, kUserTimeoutMs);
  if (address.ss_family == AF_INET6) SetOption(socket, IPPROTO_IPV6, IPV6_V6ONLY, 0);
  if (bind(socket, reinterpret_cast<const sockaddr*>(&address), length) == 0 &&
      listen(socket, kBacklog) == 0) {
    return socket;
  }
  const int error = errno;
  close(socket);
  errno = error;
  return -1;
}

// The bytes that say who the peer is: an IPv4 address, or an IPv6 network of one site (/64).
std::string AddressOf(const sockaddr_storage& peer) {
  if (peer.ss_family != AF_INET6) {
    const in_addr& ip = reinterpret_cast<const sockaddr_in*>(&peer)->sin_addr;
    return std::string(reinterpret_cast<const char*>(&ip), sizeof(ip));
  }
  const in6_addr& ip = reinterpret_cast<const sockaddr_in6*>(&peer)->sin6_addr;
  const char* bytes = reinterpret_cast<const char*>(&ip);
  if (IN6_IS_ADDR_V4MAPPED(&ip)) return std::string(bytes + 12, 4);
  if (IN6_IS_ADDR_LOOPBACK(&ip)) return std::string("\x7f\0\0\1", 4);
  return std::string(bytes, 8);
}

bool IsLoopback(const std::string& address) { return address.size() == 4 && address[0] == 0x7f; }

// Of the socket behind a descriptor; 0: none is open there.
uint64_t InodeOf(int descriptor) {
  struct stat status {};
  return fstat(descriptor, &status) == 0 && S_ISSOCK(status.st_mode) ? status.st_ino : 0;
}

int OpenSpare() { return open("/dev/null", O_RDONLY | O_CLOEXEC); }

std::string WithoutBrackets(const std::string& host) {
  const bool has_them = host.size() > 2 && host.front() == '[' && host.back() == ']';
  return has_them ? host.substr(1, host.size() - 2) : host;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ConnectionAcceptor>> ConnectionAcceptor::Listen(
    const AcceptorOptions& options) {
  std::unique_ptr<ConnectionAcceptor> acceptor(new ConnectionAcceptor());
  const int64_t cap = options.max_connections > 0 ? options.max_connections : DefaultCap();
  acceptor->max_connections_ = cap;
  acceptor->loopback_is_exempt_ = options.max_per_address == 0;
  acceptor->max_per_address_ =
      options.max_per_address > 0 ? options.max_per_address : std::max<int64_t>(1, cap - cap / 8);
  const absl::Status status = acceptor->Bind(options);
  if (!status.ok()) return status;
  acceptor->wake_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  acceptor->spare_ = OpenSpare();
  if (acceptor->wake_ < 0 || acceptor->spare_ < 0) {
    return Failed("listen on", options.host, options.port, errno);
  }
  return acceptor;
}

absl::Status ConnectionAcceptor::Bind(const AcceptorOptions& options) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const std::string host = WithoutBrackets(options.host);
  const int error = getaddrinfo(host.c_str(), absl::StrCat(options.port).c_str(), &hints, &found);
  if (error != 0) {
    return absl::UnavailableError(
        absl::StrCat("cannot resolve ", options.host, ": ", gai_strerror(error)));
  }
  const absl::Cleanup free_found = [found] { freeaddrinfo(found); };
  port_ = options.port;
  int failure = 0;
  for (const addrinfo* i = found; i != nullptr; i = i->ai_next) {
    sockaddr_storage address{};
    std::memcpy(&address, i->ai_addr, i->ai_addrlen);
    SetPort(&address, port_);  // what the first one got, if any was free
    const int socket = ListenOn(address, i->ai_addrlen);
    if (socket >= 0) {
      listeners_.push_back(socket);
      port_ = PortOf(socket);
    } else if (failure == 0 || errno == EADDRINUSE) {
      failure = errno;
    }
  }
  // A machine without IPv6 still has ::1 as a name's address; a port taken on one is taken.
  if (listeners_.empty() || failure == EADDRINUSE) {
    return Failed("listen on", options.host, options.port, failure);
  }
  return absl::OkStatus();
}

ConnectionAcceptor::~ConnectionAcceptor() {
  Stop();
  for (int descriptor : {wake_, spare_}) {
    if (descriptor >= 0) close(descriptor);
  }
}

void ConnectionAcceptor::Start(Sink sink) {
  sink_ = std::move(sink);
  thread_ = std::thread([this] { Run(); });
}

void ConnectionAcceptor::Stop() {
  if (thread_.joinable()) {
    eventfd_write(wake_, 1);
    thread_.join();
  }
  for (int listener : listeners_) close(listener);
  listeners_.clear();
}

void ConnectionAcceptor::Run() {
  std::vector<pollfd> waiting{{wake_, POLLIN, 0}};
  for (int listener : listeners_) waiting.push_back({listener, POLLIN, 0});
  while (true) {
    if (poll(waiting.data(), waiting.size(), -1) < 0 && errno != EINTR) return;
    if (waiting[0].revents != 0) return;
    for (size_t i = 1; i < waiting.size(); ++i) {
      if (waiting[i].revents != 0) AcceptFrom(waiting[i].fd);
    }
  }
}

// Takes what waits, in turns, so that Stop and the other listeners have theirs.
void ConnectionAcceptor::AcceptFrom(int listener) {
  for (int i = 0; i < kAcceptedInATurn; ++i) {
    sockaddr_storage peer{};
    socklen_t length = sizeof(peer);
    const int descriptor = accept4(listener, reinterpret_cast<sockaddr*>(&peer), &length,
                                   SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (descriptor < 0) {
      if (Recover(listener, errno)) continue;
      return;
    }
    Forget(descriptor);  // what had this number has been closed
    std::string address = AddressOf(peer);
    if (!Admit(address)) {
      Refuse(descriptor, "too many connections");
      continue;
    }
    ++by_address_[address];
    connections_[descriptor] = {InodeOf(descriptor), std::move(address)};
    sink_(listener, descriptor);
  }
}

bool ConnectionAcceptor::Recover(int listener, int error) {
  if (error == EMFILE || error == ENFILE) {
    // Else the connection would stay in the backlog and poll would return at once, for ever.
    if (spare_ >= 0) close(spare_);
    Refuse(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC), "no descriptor left");
    spare_ = OpenSpare();
    if (spare_ >= 0) return true;
  }
  if (error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM) {
    pollfd stop{wake_, POLLIN, 0};
    poll(&stop, 1, kPauseMs);
    return false;
  }
  return error != EAGAIN && error != EWOULDBLOCK && error != EBADF && error != EINVAL;
}

bool ConnectionAcceptor::Admit(const std::string& address) {
  const auto fits = [&] {
    if (static_cast<int64_t>(connections_.size()) >= max_connections_) return false;
    if (loopback_is_exempt_ && IsLoopback(address)) return true;
    const auto held = by_address_.find(address);
    return held == by_address_.end() || held->second < max_per_address_;
  };
  if (fits()) return true;
  if (SteadySeconds() - last_look_ < kSecondsBetweenLooks) return false;  // a flood costs no looks
  ForgetClosed();
  last_look_ = SteadySeconds();
  return fits();
}

void ConnectionAcceptor::Forget(int descriptor) {
  const auto found = connections_.find(descriptor);
  if (found == connections_.end()) return;
  const auto held = by_address_.find(found->second.address);
  if (--held->second == 0) by_address_.erase(held);
  connections_.erase(found);
}

void ConnectionAcceptor::ForgetClosed() {
  std::vector<int> closed;
  for (const auto& [descriptor, connection] : connections_) {
    if (InodeOf(descriptor) != connection.inode) closed.push_back(descriptor);
  }
  for (int descriptor : closed) Forget(descriptor);
}

void ConnectionAcceptor::Refuse(int descriptor, const char* reason) {
  if (descriptor < 0) return;
  const int64_t refused = ++refused_;
  close(descriptor);
  if (SteadySeconds() - last_log_ < kSecondsBetweenLogs) return;
  Log(LogLevel::kWarning, "connections refused",
      {{"reason", reason},
       {"refused", refused - refusals_logged_},
       {"open", static_cast<int64_t>(connections_.size())}});
  refusals_logged_ = refused;
  last_log_ = SteadySeconds();
}

}  // namespace fox
