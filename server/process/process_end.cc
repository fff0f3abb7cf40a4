// ProcessEnd: see process_end.h.
#include "server/process/process_end.h"

#include <signal.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <exception>
#include <new>

#include "server/process/log.h"

namespace fox {
namespace {

std::atomic<int> g_abort_code{kExitEngineFailed};
std::atomic<int> g_late_code{kExitEngineFailed};

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
  _exit(g_abort_code);
}

void EndAborted(int) {
  WriteLastLine("the process aborts", "a failed check, or a library without memory or threads");
  _exit(g_abort_code);
}

void EndLate(int) {
  WriteLastLine("the process did not stop in time", "a thread is stuck");
  _exit(g_late_code);
}

}  // namespace

void EndOnAbort(int code) {
  g_abort_code = code;
  std::set_terminate(EndUncaught);
  struct sigaction action {};
  action.sa_handler = EndAborted;
  sigaction(SIGABRT, &action, nullptr);
}

void EndWithin(double seconds, int code) {
  g_late_code = code;
  struct sigaction action {};
  action.sa_handler = EndLate;
  sigaction(SIGALRM, &action, nullptr);
  itimerval timer{};
  const double whole = std::floor(seconds);
  timer.it_value.tv_sec = static_cast<time_t>(whole);
  timer.it_value.tv_usec =
      std::max<suseconds_t>(1, static_cast<suseconds_t>((seconds - whole) * 1e6));
  setitimer(ITIMER_REAL, &timer, nullptr);
}

void EndNow(int code) {
  FlushLog(0.2);
  _exit(code);
}

}  // namespace fox
