// ConnectionAcceptor: listens on a port and hands each new connection to its endpoint, on a thread
// of its own. It replaces gRPC's listener, which has no limit of connections and, after the process
// has run out of descriptors, accepts none for minutes. This acceptor closes connections beyond its
// limit at once and continues.
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
  // Limit of open connections from one address (IPv6: one /64); 0: seven eighths of
  // max_connections. Loopback has no such limit unless this is set, because all clients of a local
  // proxy share its address.
  int64_t max_per_address = 0;
};

// Checks that `host` has an address. Unavailable: it has none; the message says why. A name is
// resolved once in a process, because an unreachable name server takes many seconds each time. Any
// thread.
absl::Status Resolves(const std::string& host);
// True if `host` has an address and all its addresses are loopback. Any thread.
bool IsLoopback(const std::string& host);

// Listen, Start, Stop and HangUp: one thread at a time. Other methods: any thread.
class ConnectionAcceptor {
 public:
  // Binds and listens on every address of the host: from now on clients can connect and wait, and
  // no other process gets the port. Unavailable: the address is in use or not of this machine; the
  // message says which.
  static absl::StatusOr<std::unique_ptr<ConnectionAcceptor>> Listen(const AcceptorOptions& options);
  ~ConnectionAcceptor();  // Stop
  ConnectionAcceptor(const ConnectionAcceptor&) = delete;
  ConnectionAcceptor& operator=(const ConnectionAcceptor&) = delete;

  int port() const { return port_; }

  // Takes over a connection and later closes its descriptor. Must not block.
  using Sink = std::function<void(int listener, int descriptor)>;

  // Starts the thread, which calls `sink` until Stop. Call once.
  void Start(Sink sink);
  // Closes the listening sockets. Open connections belong to the sink and stay. Returns at once.
  void Stop();
  // After Stop: shuts open connections down beneath their endpoints, as a failing network would.
  // Bytes in the kernel's buffers are still sent. Waits at most `seconds` for the endpoints to
  // close their descriptors.
  void HangUp(double seconds);
  // Connections refused (closed at once) since the start. Any thread.
  int64_t refused() const { return refused_; }

 private:
  struct Connection {
    int descriptor;
    uint64_t inode;    // of the socket; a reused descriptor has another
    uint64_t address;  // NetworkOf(peer)
  };

  ConnectionAcceptor() = default;
  absl::Status Bind(const AcceptorOptions& options);
  void Run();
  void AcceptFrom(int listener);
  // Handles an error of accept. True if accept may be called again at once.
  bool Recover(int listener, int error);
  // True if a connection from `address` is within the limits.
  bool Admit(uint64_t address);
  // Closes the descriptor, counts it and logs `reason`; does nothing if `descriptor` is negative.
  void Refuse(int descriptor, const char* reason);

  std::vector<int> listeners_;
  int port_ = 0;
  int spare_ = -1;  // descriptor to free for a moment when no other is left, so that accept works
  int64_t max_connections_ = 0, max_per_address_ = 0;
  bool loopback_is_exempt_ = true;
  Sink sink_;

  // Used by the thread alone. An endpoint does not report that it has closed a descriptor. The
  // acceptor notices it when the kernel gives the number to a new connection, and, at the limit, by
  // checking every record.
  std::vector<Connection> connections_;
  double last_check_ = 0;
  LogLimit log_limit_{1, 5.0};

  std::atomic<int64_t> refused_{0};
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

}  // namespace fox
