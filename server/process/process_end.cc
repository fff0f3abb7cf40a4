// ProcessEnd: see process_end.h.
#include "server/process/process_end.h"

#include <sys/resource.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <new>

#include "server/process/log.h"

namespace fox {
namespace {

std::atomic<int> g_abort_code{kExitEngineFailed};
std::atomic<int> g_late_code{kExitEngineFailed};

// After the last line; signal handlers may call. Where no core is wanted a supervisor is told by
// the exit code.
void EndBroken(int signal) {
  rlimit core{};
  if (getrlimit(RLIMIT_CORE, &core) != 0 || core.rlim_cur == 0) _exit(g_abort_code);
  ::signal(signal, SIG_DFL);
  raise(signal);  // from its own handler: when that returns, where the fault was
}

[[noreturn]] void EndUncaught() {
  constexpr const char* kEvent = "the process ends by an exception";
  try {
    if (const std::exception_ptr current = std::current_exception()) {
      std::rethrow_exception(current);
    }
    WriteLastLine(kEvent, "none: a thread could not start, or was left running");
  } catch (const std::bad_alloc&) {
    WriteLastLine(kEvent, "out of memory");
  } catch (const std::exception& exception) {
    WriteLastLine(kEvent, exception.what());
  } catch (...) {
    WriteLastLine(kEvent, "unknown");
  }
  EndBroken(SIGABRT);
  _exit(g_abort_code);  // where another handler holds the signal back
}

void EndAborted(int signal) {
  WriteLastLine("the process aborts", "a failed check, or a library without memory or threads");
  EndBroken(signal);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
void EndCrashed(int signal) {
  WriteLastLine("the process crashes",
                "an invalid access, as of a full stack or of a library without memory");
  EndBroken(signal);
}

// On a stack of its own: that of the thread may be full. Other threads of the server have theirs
// from process_settings.cc.
void HandleCrashes() {
  static char memory[64 << 10];
  const stack_t stack{memory, 0, sizeof memory};
  sigaltstack(&stack, nullptr);
  struct sigaction action = {};
  action.sa_handler = EndCrashed;
  action.sa_flags = SA_ONSTACK;
  // oneDNN uses what it has not got.
  for (const int fault : {SIGSEGV, SIGBUS, SIGILL, SIGFPE}) sigaction(fault, &action, nullptr);
}
#endif

void EndLate(int) {
  WriteLastLine(g_late_code == kExitConfiguration ? "the process did not start in time"
                                                  : "the process did not stop in time",
                "a thread is stuck");
  _exit(g_late_code);
}

}  // namespace

void EndOnAbort(int code) {
  g_abort_code = code;
  // Once: models/checkpoint/mapped_file.cc stands before the handler of SIGBUS by now.
  [[maybe_unused]] static const bool installed = [] {
    std::set_terminate(EndUncaught);
    signal(SIGABRT, EndAborted);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // they tell more
    HandleCrashes();
#endif
    return true;
  }();
}

void EndWithin(double seconds, int code) {
  g_late_code = code;
  signal(SIGALRM, EndLate);
  const int64_t microseconds = std::max<int64_t>(1, std::llround(1e6 * seconds));
  itimerval timer{};
  timer.it_value.tv_sec = microseconds / 1000000;
  timer.it_value.tv_usec = microseconds % 1000000;
  setitimer(ITIMER_REAL, &timer, nullptr);
}

void CancelEnd() {
  const itimerval never{};
  setitimer(ITIMER_REAL, &never, nullptr);
}

void EndNow(int code) {
  FlushLog(0.2);
  _exit(code);
}

}  // namespace fox
