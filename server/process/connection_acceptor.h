// ConnectionAcceptor: the listening socket of our own and the thread that hands its connections to
// a port. gRPC's listener has no cap, and after its process has run out of descriptors it accepts
// no connection for minutes; this one closes what is too much at once and goes on.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "server/process/log.h"

namespace fox {

struct AcceptorOptions {
  std::string host = "127.0.0.1";  // address or name; a name may have several addresses
  int port = 0;                    // 0: any free one
  int64_t max_connections = 8192;  // open at once
  // Of these, from one address (IPv6: from one /64); 0: seven eighths. Loopback is exempt unless
  // this is set: behind a proxy all clients have its address.
  int64_t max_per_address = 0;
};

// A name is resolved once in a process, when it is first asked for: a name server that does not
// answer takes many seconds each time. Any thread.
// Unavailable: the name has no address; the message says why.
absl::Status Resolves(const std::string& host);
// True if every address that `host` stands for is loopback. False: also when it has none.
bool IsLoopback(const std::string& host);

// Listen, Start and Stop are called by one thread at a time, the others by any.
class ConnectionAcceptor {
 public:
  // Binds and listens on every address of the host. From here on clients connect and wait; no
  // other process can have the port. Unavailable: the address is taken or not ours; the message
  // says which.
  static absl::StatusOr<std::unique_ptr<ConnectionAcceptor>> Listen(const AcceptorOptions& options);
  ~ConnectionAcceptor();  // Stop
  ConnectionAcceptor(const ConnectionAcceptor&) = delete;
  ConnectionAcceptor& operator=(const ConnectionAcceptor&) = delete;

  int port() const { return port_; }

  // Takes over a connection, whose descriptor it closes one day. Must not block.
  using Sink = std::function<void(int listener, int descriptor)>;

  // Starts the thread, which calls `sink` until Stop. Once.
  void Start(Sink sink);
  // Closes the listening sockets; open connections are the sink's and stay. Returns at once.
  void Stop();
  // After Stop: ends open connections below their endpoints, as a network would; what the kernel
  // has still goes out. Waits at most so long until the endpoints have closed them.
  void HangUp(double seconds);
  // Connections that were closed at once, since the start. Any thread.
  int64_t refused() const { return refused_; }

 private:
  struct Connection {
    int descriptor;
    uint64_t inode;    // of the socket: whether the descriptor is still this connection
    uint64_t address;  // NetworkOf the peer
  };

  ConnectionAcceptor() = default;
  absl::Status Bind(const AcceptorOptions& options);
  void Run();
  void AcceptFrom(int listener);
  // What to do about an error of accept; false: nothing more to accept now.
  bool Recover(int listener, int error);
  bool Admit(uint64_t address);
  void Refuse(int descriptor, const char* reason);

  std::vector<int> listeners_;
  int port_ = 0;
  int spare_ = -1;  // given up for a moment to close a connection when no descriptor is left
  int64_t max_connections_ = 0, max_per_address_ = 0;
  bool loopback_is_exempt_ = true;
  Sink sink_;

  // The thread's alone. An endpoint does not tell when it closes a descriptor: the kernel gives the
  // lowest free number to the next connection, and at the cap every record is looked at.
  std::vector<Connection> connections_;
  double last_look_ = 0;
  LogLimit log_limit_{1, 5.0};

  std::atomic<int64_t> refused_{0};
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

}  // namespace fox
