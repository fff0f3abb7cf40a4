// ServerProcess: a fox-server of its own, started, watched and ended.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "tests/e2e/child_process.h"

namespace fox {

struct ServerPorts {
  int grpc = 0, http = 0, metrics = 0;
};

class ServerProcess {
 public:
  // Starts `program` on loopback with these flags, and its HTTP and metrics ports. Ports of 0 are
  // any free ones. What it says on standard error is lost, unless FOX_TORTURE_LOG names a file.
  ServerProcess(const std::string& program, const std::vector<std::string>& flags,
                const ServerPorts& ports);

  // Waits until every port listens. False: it ended, or `seconds` have passed since its start.
  bool WaitListening(double seconds);
  const ServerPorts& ports() const { return ports_; }
  // From its start until every port listened; 0: not yet.
  double ready_seconds() const { return ready_seconds_; }
  double age() const;
  pid_t pid() const { return process_.pid(); }
  // Whether it has begun to block or catch the signal.
  bool Handles(int signal) const;
  // As ChildProcess does.
  void Signal(int signal) const { process_.Signal(signal); }
  std::optional<int> Wait(double seconds) { return process_.WaitEnd(seconds); }

 private:
  const std::chrono::steady_clock::time_point start_;
  ServerPorts ports_;
  double ready_seconds_ = 0;
  ChildProcess process_;
};

}  // namespace fox
