// How the process ends when it cannot return from main: exit codes, and ends that no stuck thread
// and no reader of the log can delay. Each tells why in one line of the log.
#pragma once

#include <signal.h>

namespace fox {

inline constexpr int kExitEngineFailed = 70;   // EX_SOFTWARE
inline constexpr int kExitConfiguration = 78;  // EX_CONFIG

// From now on what would abort (an uncaught exception, a library that gets no memory or
// no thread, a failed check) or crash ends the process with `code`; where cores are wanted
// (RLIMIT_CORE is not 0) it does abort or crash, behind its line, and leaves one.
void EndOnAbort(int code);

// Ends the process with `code` after `seconds`, unless it has ended before. The last call counts.
void EndWithin(double seconds, int code = kExitEngineFailed);

// What EndWithin said last counts no more.
void CancelEnd();

// Ends the process now, without destructors; the log is written first if that takes no longer than
// 0.2 s.
[[noreturn]] void EndNow(int code);

// SIGTERM and SIGINT as something to wait for. Construct it in main before any thread starts:
// threads inherit the blocked signals, so none is ever interrupted. SIGPIPE is ignored from then
// on: a reader that leaves is an error of a write, not the end.
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
