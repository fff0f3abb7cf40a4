// FaultPage: memory that a test shares with the server that it has started. The libraries that the
// test preloads there count calls in it and fail the calls that it names; the server itself is
// unaware of them. Lock-free, so that it can be used in signal handlers and before main.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <ctime>

namespace fox {

// The page's descriptor stands in this variable of the server's environment.
inline constexpr const char* kFaultPageVariable = "FAULT_PAGE";

// The kind of call that is counted.
enum class FaultKind : uint32_t {
  kNone,
  kAllocation,
  kSystemCall,
  kThread,
  kDriverCall,
  kExecutor
};

// Commands of the test to the preloaded CUDA library.
enum class DeviceCommand : uint32_t {
  kNone,
  kPrepare,  // loads the kernels below
  kTrap,     // a kernel traps: error 719, which no call of the process survives
  kWrite,    // a kernel writes to no address: error 700, likewise
  kSpin,     // kernels keep the whole device busy
};

// Where the executor fails.
enum class ExecutorFault : uint32_t {
  kNone,
  kSubmit,
  kCollect,
  kReadback,   // when the results are there
  kHang,       // for ever
  kNotFinite,  // the logits of one sequence among several are NaN
};

struct FaultPage {
  std::atomic<FaultKind> kind;      // counted from now on; kNone: nothing is
  std::atomic<int64_t> calls;       // counted so far
  std::atomic<int64_t> fail_at;     // the call that fails, from 1; 0: none
  std::atomic<int64_t> fail_calls;  // how many fail from there on
  std::atomic<int64_t> failed;      // calls that have failed
  std::atomic<int64_t> failed_ns;   // when the first did, Now()
  std::atomic<int32_t> error;       // an errno, a CUresult
  std::atomic<ExecutorFault> executor_fault;
  bool traps_system_calls;
  int32_t system_calls[8];  // the numbers of the counted system calls; -1: none
  char driver_calls[64];    // a part of the counted driver calls' names; "": all

  std::atomic<DeviceCommand> command;  // a futex
  std::atomic<int64_t> command_ns;     // when the kernel was launched
  std::atomic<int64_t> done_ns;        // when the command was done, else 0
  std::atomic<int32_t> result;         // a cudaError_t

  static int64_t Now() {
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC, &now);
    return int64_t{now.tv_sec} * 1000000000 + now.tv_nsec;
  }

  // Counts a call; true: it is to fail.
  bool Fails(FaultKind what) {
    if (kind.load() != what) return false;
    const int64_t call = calls.fetch_add(1) + 1, first = fail_at.load();
    if (first == 0 || call < first || call >= first + fail_calls.load()) return false;
    if (failed.fetch_add(1) == 0) failed_ns = Now();
    return true;
  }

  // The page of this process, or null.
  static FaultPage* Inherited() {
    const char* descriptor = std::getenv(kFaultPageVariable);
    if (descriptor == nullptr) return nullptr;
    void* page = mmap(nullptr, sizeof(FaultPage), PROT_READ | PROT_WRITE, MAP_SHARED,
                      std::atoi(descriptor), 0);
    return page == MAP_FAILED ? nullptr : static_cast<FaultPage*>(page);
  }
};
static_assert(std::atomic<int64_t>::is_always_lock_free);

}  // namespace fox
