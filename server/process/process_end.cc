// ProcessEnd: handlers of exceptions, aborts, crashes and the timer.
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

#include "kernels/core/check.h"
#include "server/process/log.h"

namespace fox {
namespace {

std::atomic<int> g_abort_code{kExitEngineFailed};
std::atomic<int> g_late_code{kExitEngineFailed};
static_assert(std::atomic<int>::is_always_lock_free);  // signal handlers read both

// Ends the process after its last line: with g_abort_code if the system keeps no cores, else by
// `signal` and its default action. Signal handlers may call it.
void EndBroken(int signal) {
  rlimit core{};
  if (getrlimit(RLIMIT_CORE, &core) != 0 || core.rlim_cur == 0) _exit(g_abort_code);
  ::signal(signal, SIG_DFL);
  raise(signal);  // blocked in its own handler: it takes effect where the fault was
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
  _exit(g_abort_code);  // in case the signal is blocked
}

void EndAborted(int signal) {
  WriteLastLine("the process aborts", "a failed check, or a library without memory or threads");
  EndBroken(signal);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
void EndCrashed(int signal) {
  WriteLastLine("the process crashes",
                "an invalid access, for example by a full stack or a library without memory");
  EndBroken(signal);
}

// Handles crashes of this thread on a stack of their own, because the thread's stack may be full.
// Other threads get such a stack from process_settings.cc.
void HandleCrashes() {
  static char memory[64 << 10];
  const stack_t stack{memory, 0, sizeof memory};
  sigaltstack(&stack, nullptr);
  struct sigaction action = {};
  action.sa_handler = EndCrashed;
  action.sa_flags = SA_ONSTACK;
  // oneDNN continues without a check that its memory was allocated.
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
  FOX_CHECK(code != 0);  // a supervisor would take the abort for a drain
  g_abort_code = code;
  // Once: models/checkpoint/mapped_file.cc later puts its handler of SIGBUS before this one.
  [[maybe_unused]] static const bool installed = [] {
    std::set_terminate(EndUncaught);
    signal(SIGABRT, EndAborted);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // their reports say more
    HandleCrashes();
#endif
    return true;
  }();
}

void EndWithin(double seconds, int code) {
  FOX_CHECK(seconds > 0);
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
