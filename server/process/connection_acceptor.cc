// ConnectionAcceptor: names and addresses, listening sockets, and the loop that accepts.
#include "server/process/connection_acceptor.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <map>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/mutex.h"
#include "engine/base/steady_clock.h"
#include "kernels/core/check.h"
#include "server/process/peer_address.h"

namespace fox {
namespace {

constexpr int kBacklog = 4096;
constexpr int kAcceptedInATurn = 64;
// A connection closes if its data is unacknowledged for this long, as with gRPC's own listeners.
constexpr unsigned kUserTimeoutMs = 20000;
constexpr double kSecondsBetweenChecks = 0.05;
constexpr std::chrono::milliseconds kPause(20);

absl::Status CannotListen(const AcceptorOptions& options, int error) {
  return absl::UnavailableError(absl::StrCat("cannot listen on ", options.host, ", port ",
                                             options.port, ": ", std::strerror(error)));
}

// The port in an address of either family, in network byte order.
uint16_t& PortOf(sockaddr_storage& address) {
  static_assert(offsetof(sockaddr_in, sin_port) == offsetof(sockaddr_in6, sin6_port));
  return reinterpret_cast<sockaddr_in&>(address).sin_port;
}

void SetOption(int socket, int level, int name, unsigned value) {
  setsockopt(socket, level, name, &value, sizeof(value));
}

// Returns a listening socket, or -1 and sets errno. Accepted sockets inherit its options.
int ListenOn(const sockaddr_storage& address) {
  const int socket = ::socket(address.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (socket < 0) return -1;
  SetOption(socket, SOL_SOCKET, SO_REUSEADDR, 1);
  SetOption(socket, IPPROTO_TCP, TCP_NODELAY, 1);
  SetOption(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, kUserTimeoutMs);
  if (address.ss_family == AF_INET6) SetOption(socket, IPPROTO_IPV6, IPV6_V6ONLY, 0);
  if (bind(socket, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0 &&
      listen(socket, kBacklog) == 0) {
    return socket;
  }
  const int error = errno;
  close(socket);
  errno = error;
  return -1;
}

// The inode of the socket behind a descriptor; 0: no socket is open there.
uint64_t InodeOf(int descriptor) {
  struct stat status {};
  return fstat(descriptor, &status) == 0 && S_ISSOCK(status.st_mode) ? status.st_ino : 0;
}

int OpenSpare() { return open("/dev/null", O_RDONLY | O_CLOEXEC); }

using Addresses = absl::StatusOr<std::vector<sockaddr_storage>>;

Addresses Ask(const std::string& host) {
  const bool brackets = host.size() > 2 && host.front() == '[' && host.back() == ']';
  const std::string name = brackets ? host.substr(1, host.size() - 2) : host;
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(name.c_str(), nullptr, &hints, &found);
  if (error != 0) {
    return absl::UnavailableError(absl::StrCat("cannot resolve ", host, ": ", gai_strerror(error)));
  }
  std::vector<sockaddr_storage> addresses;
  for (const addrinfo* i = found; i != nullptr; i = i->ai_next) {
    std::memcpy(&addresses.emplace_back(), i->ai_addr, i->ai_addrlen);
  }
  freeaddrinfo(found);
  return addresses;
}

// The addresses of a host, which is a name or an address, in brackets or not. Without ports.
Addresses Resolve(const std::string& host) {
  static Mutex mutex;
  static std::map<std::string, Addresses>& known = *new std::map<std::string, Addresses>();
  const MutexLock lock(mutex);
  const auto found = known.find(host);
  return found != known.end() ? found->second : known.emplace(host, Ask(host)).first->second;
}

}  // namespace

absl::Status Resolves(const std::string& host) { return Resolve(host).status(); }

bool IsLoopback(const std::string& host) {
  const auto addresses = Resolve(host);
  return addresses.ok() && std::all_of(addresses->begin(), addresses->end(),
                                       [](const auto& a) { return IsLoopback(NetworkOf(a)); });
}

absl::StatusOr<std::unique_ptr<ConnectionAcceptor>> ConnectionAcceptor::Listen(
    const AcceptorOptions& options) {
  std::unique_ptr<ConnectionAcceptor> acceptor(new ConnectionAcceptor());
  FOX_CHECK(options.max_connections > 0 && options.max_per_address >= 0);
  const int64_t cap = options.max_connections;
  acceptor->max_connections_ = cap;
  acceptor->loopback_is_exempt_ = options.max_per_address == 0;
  acceptor->max_per_address_ =
      options.max_per_address > 0 ? options.max_per_address : std::max<int64_t>(1, cap - cap / 8);
  if (absl::Status status = acceptor->Bind(options); !status.ok()) return status;
  acceptor->spare_ = OpenSpare();
  if (acceptor->spare_ < 0) return CannotListen(options, errno);
  return acceptor;
}

absl::Status ConnectionAcceptor::Bind(const AcceptorOptions& options) {
  Addresses addresses = Resolve(options.host);
  if (!addresses.ok()) return addresses.status();
  port_ = options.port;
  int failure = 0;
  for (sockaddr_storage& address : *addresses) {
    PortOf(address) = htons(static_cast<uint16_t>(port_));  // port 0: all have the first one's
    const int socket = ListenOn(address);
    if (socket >= 0) {
      listeners_.push_back(socket);
      socklen_t length = sizeof(address);
      getsockname(socket, reinterpret_cast<sockaddr*>(&address), &length);
      port_ = ntohs(PortOf(address));
    } else if (failure == 0 || errno == EADDRINUSE) {
      failure = errno;
    }
  }
  // A name may have the address ::1 on a machine without IPv6: that is no error. A port that is in
  // use on one address is.
  if (listeners_.empty() || failure == EADDRINUSE) return CannotListen(options, failure);
  return absl::OkStatus();
}

ConnectionAcceptor::~ConnectionAcceptor() {
  Stop();
  if (spare_ >= 0) close(spare_);
}

void ConnectionAcceptor::Start(Sink sink) {
  FOX_CHECK(sink != nullptr && sink_ == nullptr && !stopping_);
  sink_ = std::move(sink);
  thread_ = std::thread([this] { Run(); });
}

void ConnectionAcceptor::Stop() {
  stopping_ = true;
  for (int listener : listeners_) shutdown(listener, SHUT_RDWR);  // wakes poll
  if (thread_.joinable()) thread_.join();
  for (int listener : listeners_) close(listener);
  listeners_.clear();
}

void ConnectionAcceptor::HangUp(double seconds) {
  FOX_CHECK(stopping_ && !thread_.joinable());  // connections_ is the thread's until then
  const auto is_closed = [](const Connection& c) { return InodeOf(c.descriptor) != c.inode; };
  std::erase_if(connections_, is_closed);
  for (const Connection& connection : connections_) shutdown(connection.descriptor, SHUT_RDWR);
  const double until = SteadySeconds() + seconds;
  while (!connections_.empty() && SteadySeconds() < until) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    std::erase_if(connections_, is_closed);
  }
}

void ConnectionAcceptor::Run() {
  std::vector<pollfd> waiting;
  for (int listener : listeners_) waiting.push_back({listener, POLLIN, 0});
  while (!stopping_) {
    if (poll(waiting.data(), waiting.size(), -1) < 0 && errno != EINTR) return;
    for (const pollfd& ready : waiting) {
      if (ready.revents != 0) AcceptFrom(ready.fd);
    }
  }
}

// Accepts a limited number of waiting connections, so that other listeners and Stop get a turn.
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
    // An earlier connection with this number has been closed.
    std::erase_if(connections_, [=](const auto& c) { return c.descriptor == descriptor; });
    const uint64_t address = NetworkOf(peer);
    if (!Admit(address)) {
      Refuse(descriptor, "too many connections");
      continue;
    }
    connections_.push_back({descriptor, InodeOf(descriptor), address});
    FOX_CHECK(static_cast<int64_t>(connections_.size()) <= max_connections_);
    sink_(listener, descriptor);
  }
}

bool ConnectionAcceptor::Recover(int listener, int error) {
  if (error == EMFILE || error == ENFILE) {
    // Otherwise the connection would stay in the backlog and poll would return at once, for ever.
    if (spare_ >= 0) close(spare_);
    Refuse(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC), "no descriptor left");
    spare_ = OpenSpare();
    if (spare_ >= 0) return true;
  }
  if (error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM) {
    std::this_thread::sleep_for(kPause);
    return false;
  }
  return error != EAGAIN && error != EWOULDBLOCK && error != EBADF && error != EINVAL;
}

bool ConnectionAcceptor::Admit(uint64_t address) {
  const auto fits = [&] {
    if (static_cast<int64_t>(connections_.size()) >= max_connections_) return false;
    if (loopback_is_exempt_ && IsLoopback(address)) return true;
    return std::count_if(connections_.begin(), connections_.end(), [=](const Connection& c) {
             return c.address == address;
           }) < max_per_address_;
  };
  if (fits()) return true;
  if (SteadySeconds() - last_check_ < kSecondsBetweenChecks)
    return false;  // a flood costs no checks
  last_check_ = SteadySeconds();
  std::erase_if(connections_, [](const auto& c) { return InodeOf(c.descriptor) != c.inode; });
  return fits();
}

void ConnectionAcceptor::Refuse(int descriptor, const char* reason) {
  if (descriptor < 0) return;
  ++refused_;
  close(descriptor);
  const std::optional<int64_t> left_out = log_limit_.Take(SteadySeconds());
  if (!left_out.has_value()) return;
  Log(LogLevel::kWarning, "connections refused",
      {{"reason", reason},
       {"refused", *left_out + 1},
       {"open", static_cast<int64_t>(connections_.size())}});
}

}  // namespace fox
