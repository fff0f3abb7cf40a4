// SignalHandler: SIGTERM and SIGINT as something to wait for. Construct it in main before any
// thread starts: threads inherit the blocked signals, so none is ever interrupted. SIGPIPE is
// ignored from then on: a reader that leaves is an error of a write, not the end.
#pragma once

#include <signal.h>

namespace fox {

class SignalHandler {
 public:
  SignalHandler();

  // Blocks until a signal came or Wake was called. Returns the signal; 0 after Wake, which counts
  // for one Wait.
  int Wait();
  // Whether another signal has come since; does not block. Called by the thread that waited.
  bool Again();
  // Ends Wait from another thread.
  void Wake();

 private:
  sigset_t stops_{}, all_{};  // SIGTERM and SIGINT; these and what Wake sends
};

}  // namespace fox
