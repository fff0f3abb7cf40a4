// ProcessEnd: exit codes, and ways to end the process that no stuck thread and no reader of the log
// can delay. Each logs its reason in one line.
#pragma once

#include <signal.h>

namespace fox {

inline constexpr int kExitEngineFailed = 70;   // EX_SOFTWARE
inline constexpr int kExitConfiguration = 78;  // EX_CONFIG

// From now on an abort (by an uncaught exception, a failed check, or a library without memory or
// threads) and a crash end the process with `code`. If the system keeps cores (RLIMIT_CORE is not
// 0), the process aborts or crashes after its line, and leaves a core.
void EndOnAbort(int code);

// Ends the process with `code` after `seconds`. A later call replaces an earlier one.
void EndWithin(double seconds, int code = kExitEngineFailed);

// Cancels EndWithin.
void CancelEnd();

// Ends the process now, without destructors, after up to 0.2 s for the log.
[[noreturn]] void EndNow(int code);

// SignalHandler: waits for SIGTERM and SIGINT. Construct it in main before any thread starts:
// threads inherit the blocked signals, so no thread is interrupted. It also ignores SIGPIPE, so
// that a reader that leaves fails a write instead of ending the process.
class SignalHandler {
 public:
  SignalHandler();

  // Blocks until a signal arrives or Wake is called. Returns the signal, or 0 after Wake. One Wake
  // ends one Wait.
  int Wait();
  // True if a further signal has arrived; does not block. Called by the thread that waited.
  bool Again();
  // Ends Wait from another thread.
  void Wake();

 private:
  sigset_t stops_{};  // SIGTERM and SIGINT
  sigset_t all_{};    // stops_ and the signal of Wake
};

}  // namespace fox
