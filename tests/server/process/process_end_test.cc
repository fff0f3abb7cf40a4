// The ends of a process: the exit code, and one line that tells why.
#include "server/process/process_end.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>

#include "server/process/log.h"

namespace fox {
namespace {

using ::testing::ExitedWithCode;
using ::testing::KilledBySignal;

// Cores are wanted (`ulimit -c`) up to so many bytes; into one byte none is written.
void WantCores(rlim_t bytes) {
  rlimit core{};
  getrlimit(RLIMIT_CORE, &core);
  core.rlim_cur = bytes;
  if (setrlimit(RLIMIT_CORE, &core) != 0) std::abort();
}

class ProcessEndDeathTest : public ::testing::Test {
 protected:
  ProcessEndDeathTest() {
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    WantCores(0);
  }
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

TEST_F(ProcessEndDeathTest, WhereCoresAreWantedTheSignalEndsIt) {
  EXPECT_EXIT(
      {
        WantCores(1);
        EndOnAbort(kExitEngineFailed);
        std::abort();
      },
      KilledBySignal(SIGABRT), "the process aborts");
  EXPECT_EXIT(
      {
        WantCores(1);
        EndOnAbort(kExitEngineFailed);
        ThrowOnAThread(std::bad_alloc());
      },
      KilledBySignal(SIGABRT), "out of memory");
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  for (const int fault : {SIGSEGV, SIGBUS, SIGILL, SIGFPE}) {
    EXPECT_EXIT(
        {
          WantCores(1);
          EndOnAbort(kExitEngineFailed);
          raise(fault);
        },
        KilledBySignal(fault), "the process crashes");
  }
#endif
}

// A core is written where the kernel writes it into the working directory.
TEST_F(ProcessEndDeathTest, ACrashLeavesACore) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers tell more";
#endif
  std::string pattern;
  std::getline(std::ifstream("/proc/sys/kernel/core_pattern"), pattern);
  if (pattern.empty() || pattern.find_first_of("|/") != std::string::npos) {
    GTEST_SKIP() << "cores go to " << pattern;
  }
  const std::string directory = ::testing::TempDir() + "/process_end_test_core";
  std::filesystem::create_directory(directory);
  const pid_t child = fork();
  if (child == 0) {
    WantCores(RLIM_INFINITY);
    if (chdir(directory.c_str()) != 0) _exit(1);
    EndOnAbort(kExitEngineFailed);
    std::thread([] { *const_cast<volatile int*>(static_cast<int*>(nullptr)) = 1; }).join();
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV) << status;
  EXPECT_TRUE(WCOREDUMP(status));
  EXPECT_FALSE(std::filesystem::is_empty(directory));
  std::filesystem::remove_all(directory);
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
