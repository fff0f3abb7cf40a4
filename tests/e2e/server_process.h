// ServerProcess: a fox-server in a process of its own, started, watched and ended.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "tests/e2e/child_process.h"

namespace fox {

struct ServerPorts {
  int grpc = 0, http = 0, metrics = -1;  // -1: none
};

struct ServerStart {
  std::string program;                 // fox-server's path
  std::vector<std::string> flags;      // beside those of ports
  ServerPorts ports;                   // 0: any free ones
  std::vector<std::string> variables;  // "NAME=value"
  std::string errors;                  // a file for standard error; "": it is in the log
};

class ServerProcess {
 public:
  explicit ServerProcess(const ServerStart& start);

  // Waits until every port listens. False: it has ended, or `seconds` have passed since its start.
  bool WaitReady(double seconds = 60);
  const ServerPorts& ports() const { return ports_; }
  std::string target() const { return "127.0.0.1:" + std::to_string(ports_.grpc); }
  // From its start until every port listened; 0: not yet.
  double ready_seconds() const { return ready_seconds_; }
  double age() const;
  pid_t pid() const { return process_.pid(); }
  // Whether it has begun to block or catch the signal.
  bool Handles(int signal) const;
  // What ChildProcess has.
  std::string log() const { return process_.output(); }
  ChildProcess::Clock::time_point ended() const { return process_.ended(); }
  void Signal(int signal) const { process_.Signal(signal); }
  std::optional<int> WaitEnd(double seconds) { return process_.WaitEnd(seconds); }
  bool WaitLog(const std::string& text, double seconds = 60);

 private:
  const ChildProcess::Clock::time_point start_ = ChildProcess::Clock::now();
  const ServerPorts asked_;
  ServerPorts ports_;
  double ready_seconds_ = 0;
  ChildProcess process_;
};

}  // namespace fox
