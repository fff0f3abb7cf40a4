// Preloaded into a fox-server on a GPU: a thread that waits for the test's command and launches a
// kernel that traps, writes nowhere or never ends, in the context that the server computes in.
#include <cuda_runtime.h>
#include <linux/futex.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <thread>

#include "tests/faults/cuda_faults.h"
#include "tests/faults/fault_page.h"

namespace fox {
namespace {

constexpr long long kSpinCycles = 30'000'000'000;  // some 20 s: a test that fails frees the device

__global__ void TrapKernel() { __trap(); }

__global__ void WriteKernel(volatile int* nowhere) { *nowhere = 1; }

__global__ void SpinKernel() {
  const long long start = clock64();
  while (clock64() - start < kSpinCycles) {
  }
}

// A stream that does not wait for others.
cudaStream_t TheStream() {
  static cudaStream_t stream = [] {
    cudaStream_t made = nullptr;
    cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking);
    return made;
  }();
  return stream;
}

cudaError_t Prepare() {
  cudaFuncAttributes attributes{};
  for (const void* kernel :
       {reinterpret_cast<const void*>(TrapKernel), reinterpret_cast<const void*>(WriteKernel),
        reinterpret_cast<const void*>(SpinKernel)}) {
    const cudaError_t error = cudaFuncGetAttributes(&attributes, kernel);
    if (error != cudaSuccess) return error;
  }
  return TheStream() == nullptr ? cudaErrorInvalidValue : cudaSuccess;
}

// As many threads as the device can hold.
cudaError_t SpinEverywhere() {
  cudaDeviceProp properties{};
  const cudaError_t error = cudaGetDeviceProperties(&properties, 0);
  if (error != cudaSuccess) return error;
  const int blocks = properties.multiProcessorCount * properties.maxThreadsPerMultiProcessor / 1024;
  SpinKernel<<<blocks, 1024, 0, TheStream()>>>();
  return cudaGetLastError();
}

cudaError_t Execute(DeviceCommand command) {
  switch (command) {
    case DeviceCommand::kPrepare:
      return Prepare();
    case DeviceCommand::kTrap:
      TrapKernel<<<1, 1, 0, TheStream()>>>();
      return cudaStreamSynchronize(TheStream());
    case DeviceCommand::kWrite:
      WriteKernel<<<1, 1, 0, TheStream()>>>(nullptr);
      return cudaStreamSynchronize(TheStream());
    case DeviceCommand::kSpin:
      return SpinEverywhere();
    default:
      return cudaSuccess;
  }
}

void ObeyCommands(FaultPage* page) {
  for (;;) {
    const DeviceCommand command = page->command.load();
    if (command == DeviceCommand::kNone) {
      syscall(SYS_futex, &page->command, FUTEX_WAIT, DeviceCommand::kNone, nullptr, nullptr, 0);
      continue;
    }
    page->command = DeviceCommand::kNone;
    page->command_ns = FaultPage::Now();
    page->result = Execute(command);
    page->done_ns = FaultPage::Now();
  }
}

// The server decides which of its threads get signals.
__attribute__((constructor)) void Start() {
  FaultPage* page = FaultPage::Inherited();
  if (page == nullptr || !IsPreloaded()) return;
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread([page] { ObeyCommands(page); }).detach();
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

}  // namespace

bool IsPreloaded() { return std::getenv("LD_PRELOAD") != nullptr; }

}  // namespace fox
