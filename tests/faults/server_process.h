// ServerProcess: a fox-server with a FaultPage and a preloaded library, its log, its ports, its
// end.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tests/e2e/child_process.h"
#include "tests/faults/fault_page.h"

namespace fox {

// A page that servers started from now on can be given.
class SharedFaultPage {
 public:
  SharedFaultPage();
  ~SharedFaultPage();
  FaultPage* operator->() const { return page_; }
  int descriptor() const { return descriptor_; }

  void Clear();
  // Call `fail_at` of those counted from now on fails with `error`, and so do `calls - 1` more.
  void Arm(FaultKind kind, int64_t fail_at, int error = 0, int64_t calls = 1);
  // Counts no more.
  void Disarm() const { page_->kind = FaultKind::kNone; }
  // Seconds since the first failing call.
  double SecondsSinceFailure() const;

 private:
  int descriptor_;
  FaultPage* page_;
};

struct ServerStart {
  std::string program = "fox-server";
  std::string model;                   // "": models/demo
  std::string preload;                 // a library, or ""
  std::vector<std::string> flags;      // beside --model and ports
  std::vector<std::string> variables;  // "NAME=value"
  bool http = true;
};

class ServerProcess {
 public:
  ServerProcess(const ServerStart& start, const SharedFaultPage& page);

  // False: the process has ended, or `seconds` have passed.
  bool WaitReady(double seconds = 60);
  // As ChildProcess does.
  std::optional<int> WaitEnd(double seconds) { return process_.WaitEnd(seconds); }
  void Signal(int signal) const { process_.Signal(signal); }

  int grpc_port() const { return grpc_port_; }
  int http_port() const { return http_port_; }
  std::string target() const { return "127.0.0.1:" + std::to_string(grpc_port_); }
  // Of both standard streams.
  std::string log() const { return process_.output(); }
  // When the process ended; FaultPage::Now().
  int64_t ended_ns() const;

 private:
  const bool http_;
  int grpc_port_ = 0, http_port_ = 0;
  ChildProcess process_;
};

// Where a library is that this program is linked with, by one of its functions.
std::string LibraryOf(const void* function);

}  // namespace fox
