// The ends of a process: its exit code, and one line with the reason.
#include "server/process/process_end.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <new>
#include <stdexcept>
#include <thread>

#include "server/process/log.h"

namespace fox {
namespace {

// Sets the limit of core files (`ulimit -c`). With a limit of one byte cores count as wanted, and
// none is written.
void WantCores(rlim_t bytes) {
  rlimit core{};
  getrlimit(RLIMIT_CORE, &core);
  core.rlim_cur = bytes;
  if (setrlimit(RLIMIT_CORE, &core) != 0) std::abort();
}

void ThrowOnAThread(const std::exception& exception) {
  std::thread([&] {
    if (dynamic_cast<const std::bad_alloc*>(&exception) != nullptr) throw std::bad_alloc();
    throw std::runtime_error(exception.what());
  }).join();
}

// Fills the stack: recurses without end and writes to each frame.
int Recurse(int depth) {    // NOLINT(misc-no-recursion)
  if (depth < 0) return 0;  // never true, but compilers warn without it
  volatile char frame[1024];
  frame[depth % 1024] = 1;
  return Recurse(depth + 1) + frame[(depth + 1) % 1024];
}

[[noreturn]] void Hang() {
  for (;;) pause();
}

class ProcessEndDeathTest : public ::testing::Test {
 protected:
  ProcessEndDeathTest() { WantCores(0); }
  static void ExpectExit(const std::function<void()>& end, int code, const char* says) {
    EXPECT_EXIT(end(), ::testing::ExitedWithCode(code), says);
  }
  // Expects the end by a signal if cores are wanted.
  static void ExpectSignal(const std::function<void()>& end, int signal, const char* says) {
    const auto with_core = [&] {
      WantCores(1);
      EndOnAbort(kExitEngineFailed);
      end();
    };
    EXPECT_EXIT(with_core(), ::testing::KilledBySignal(signal), says);
  }
};

TEST_F(ProcessEndDeathTest, ExceptionsOfAnyThreadAndAborts) {
  const auto out_of_memory = [] { ThrowOnAThread(std::bad_alloc()); };
  const auto start_out_of_memory = [&] {
    EndOnAbort(kExitConfiguration);
    out_of_memory();
  };
  ExpectExit(start_out_of_memory, 78,
             "error the process ends by an exception reason=\"out of memory\"");
  const auto thrown = [] {
    EndOnAbort(kExitEngineFailed);
    ThrowOnAThread(std::runtime_error("so it is"));
  };
  ExpectExit(thrown, 70, "reason=\"so it is\"");
  const auto aborted = [] {
    EndOnAbort(kExitEngineFailed);
    std::abort();
  };
  ExpectExit(aborted, 70, "the process aborts");
  ExpectSignal([] { std::abort(); }, SIGABRT, "the process aborts");
  ExpectSignal(out_of_memory, SIGABRT, "out of memory");
}

TEST_F(ProcessEndDeathTest, InvalidAccesses) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers tell more";
#endif
  for (const int fault : {SIGSEGV, SIGBUS, SIGILL, SIGFPE}) {
    const auto crash = [&] {
      EndOnAbort(kExitEngineFailed);
      raise(fault);
    };
    ExpectExit(crash, 70, "the process crashes");
    ExpectSignal([&] { raise(fault); }, fault, "the process crashes");
  }
  const auto write_to_null = [] {
    std::thread([] { *const_cast<volatile int*>(static_cast<int*>(nullptr)) = 1; }).join();
  };
  ExpectSignal(write_to_null, SIGSEGV, "the process crashes");
  const auto fill_stack = [] {
    EndOnAbort(kExitEngineFailed);
    Recurse(0);
  };
  ExpectExit(fill_stack, 70, "the process crashes.*full stack");
  ExpectExit([&] { std::thread(fill_stack).join(); }, 70, "the process crashes.*full stack");
}

TEST_F(ProcessEndDeathTest, AProcessThatDoesNotStartOrStopInTimeIsEnded) {
  const auto stop = [] {
    EndWithin(60);
    EndWithin(0.05);  // the last call counts
    Hang();
  };
  ExpectExit(stop, 70, "the process did not stop in time");
  const auto end = [](int code) {
    EndWithin(0.05, code);
    Hang();
  };
  ExpectExit([&] { end(0); }, 0, "");
  ExpectExit([&] { end(kExitConfiguration); }, 78, "the process did not start in time");
  const auto cancelled = [] {
    EndWithin(0.05, kExitConfiguration);
    CancelEnd();
    usleep(200000);
    _exit(3);
  };
  ExpectExit(cancelled, 3, "");
}

TEST_F(ProcessEndDeathTest, TheLogIsWrittenFirst) {
  const auto end = [] {
    Log(LogLevel::kError, "the last word");
    EndNow(kExitEngineFailed);
  };
  ExpectExit(end, 70, "the last word");
}

}  // namespace
}  // namespace fox
