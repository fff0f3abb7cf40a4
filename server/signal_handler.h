// SignalHandler: SIGTERM and SIGINT as something to wait for. Construct it in main before any
// thread starts: threads inherit the blocked signals, so none is ever interrupted.
#pragma once

#include <atomic>

namespace fox {

class SignalHandler {
 public:
  SignalHandler();

  // Blocks until a signal came or Wake was called. Returns the signal, 0 after Wake.
  int Wait();
  // Whether another signal has come since; does not block. Called by the thread that waited.
  bool Again();
  // Ends Wait from another thread.
  void Wake();

 private:
  std::atomic<bool> woken_{false};
};

}  // namespace fox
