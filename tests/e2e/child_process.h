// ChildProcess: a program in a process of its own: what it says, as it comes, and its end.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "engine/mutex.h"

namespace fox {

struct ChildStart {
  std::vector<std::string> arguments;  // the program's path first
  std::vector<std::string> variables;  // "NAME=value", before those of this process
  std::string errors;                  // a file for standard error; "": with standard output
};

// All methods may be called from any thread.
class ChildProcess {
 public:
  using Clock = std::chrono::steady_clock;

  // It leaves no core, and dies with the thread that starts it.
  explicit ChildProcess(ChildStart start);
  ~ChildProcess();  // kills it if it still runs
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  pid_t pid() const { return pid_; }
  std::string output() const;
  // Waits until `holds` of the output. False: the process has ended, or `seconds` have passed.
  bool WaitOutput(double seconds, const std::function<bool(const std::string& output)>& holds);
  // The exit code once all output is there; 128 + signal when one ended it; nothing: it still runs
  // after `seconds`.
  std::optional<int> WaitEnd(double seconds);
  Clock::time_point ended() const;
  void Signal(int signal) const;

 private:
  void Watch();

  pid_t pid_ = -1;
  int pipe_ = -1;
  mutable Mutex mutex_;
  CondVar changed_;
  std::string output_ ABSL_GUARDED_BY(mutex_);
  std::optional<int> code_ ABSL_GUARDED_BY(mutex_);
  Clock::time_point ended_ ABSL_GUARDED_BY(mutex_);
  std::thread watcher_;
};

// The port that a server's line says behind `what`, on standard output or, where that line was
// lost, in the log; 0: neither is there.
int PortAfter(const std::string& output, const std::string& what);

}  // namespace fox
