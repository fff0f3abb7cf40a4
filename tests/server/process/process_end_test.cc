// The ends of a process: the exit code, and one line that tells why.
#include "server/process/process_end.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <new>
#include <stdexcept>
#include <thread>

#include "server/process/log.h"

namespace fox {
namespace {

using ::testing::ExitedWithCode;

class ProcessEndDeathTest : public ::testing::Test {
 protected:
  ProcessEndDeathTest() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

void ThrowOnAThread(const std::exception& exception) {
  std::thread([&] {
    if (dynamic_cast<const std::bad_alloc*>(&exception) != nullptr) throw std::bad_alloc();
    throw std::runtime_error(exception.what());
  }).join();
}

TEST_F(ProcessEndDeathTest, ExceptionsOfAnyThread) {
  EXPECT_EXIT(
      {
        EndOnAbort(kExitConfiguration);
        ThrowOnAThread(std::bad_alloc());
      },
      ExitedWithCode(78), "error the process ends by an exception reason=\"out of memory\"");
  EXPECT_EXIT(
      {
        EndOnAbort(kExitEngineFailed);
        ThrowOnAThread(std::runtime_error("so it is"));
      },
      ExitedWithCode(70), "reason=\"so it is\"");
}

TEST_F(ProcessEndDeathTest, AbortsOfLibraries) {
  EXPECT_EXIT(
      {
        EndOnAbort(kExitEngineFailed);
        std::abort();
      },
      ExitedWithCode(70), "the process aborts");
}

TEST_F(ProcessEndDeathTest, InvalidAccesses) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers tell more";
#endif
  EXPECT_EXIT(
      {
        EndOnAbort(kExitEngineFailed);
        raise(SIGSEGV);
      },
      ExitedWithCode(70), "the process crashes");
}

TEST_F(ProcessEndDeathTest, WhatDoesNotStopIsStopped) {
  EXPECT_EXIT(
      {
        EndWithin(60);
        EndWithin(0.05);
        for (;;) pause();
      },
      ExitedWithCode(70), "the process did not stop in time");
  EXPECT_EXIT(
      {
        EndWithin(0.05, 0);
        for (;;) pause();
      },
      ExitedWithCode(0), "");
}

TEST_F(ProcessEndDeathTest, AStartThatHangsIsStoppedAndOneThatSucceedsIsNot) {
  EXPECT_EXIT(
      {
        EndWithin(0.05, kExitConfiguration);
        for (;;) pause();
      },
      ExitedWithCode(78), "the process did not start in time");
  EXPECT_EXIT(
      {
        EndWithin(0.05, kExitConfiguration);
        CancelEnd();
        usleep(200000);
        _exit(3);
      },
      ExitedWithCode(3), "");
}

TEST_F(ProcessEndDeathTest, TheLogIsWrittenFirst) {
  EXPECT_EXIT(
      {
        Log(LogLevel::kError, "the last word");
        EndNow(kExitEngineFailed);
      },
      ExitedWithCode(70), "the last word");
}

}  // namespace
}  // namespace fox
