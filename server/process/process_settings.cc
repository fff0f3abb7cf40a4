// Process settings: descriptors, heap, stacks, Abseil's locks, and a pthread_create of the
// executable, which all libraries call instead of libc's.
#include "server/process/process_settings.h"

#include <dlfcn.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>

#include <atomic>
#include <cstddef>
#include <new>

#include "absl/synchronization/mutex.h"

namespace fox {
namespace {

constexpr size_t kStackBytes = 8 << 20;
constexpr size_t kSignalStackBytes = 64 << 10;  // for a handler, with the registers of AVX-512

static_assert(kStackBytes >= 4 * kSignalStackBytes);

std::atomic<int> g_failed_threads{0};

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
struct Start {
  void* (*function)(void*);
  void* argument;
};

// Runs a thread's function. The first part of the thread's stack serves signal handlers, so that
// they also work when the rest is full.
void* RunWithSignalStack(void* argument) {
  const Start start = *static_cast<Start*>(argument);
  delete static_cast<Start*>(argument);
  char memory[kSignalStackBytes];
  const stack_t stack{memory, 0, sizeof memory};
  sigaltstack(&stack, nullptr);
  void* const result = start.function(start.argument);
  const stack_t none{nullptr, SS_DISABLE, 0};
  sigaltstack(&none, nullptr);
  return result;
}

// True if a thread with these attributes has room for a signal stack.
bool HasLargeStack(const pthread_attr_t* attributes) {
  size_t bytes = kStackBytes;
  if (attributes != nullptr) pthread_attr_getstacksize(attributes, &bytes);
  return bytes >= 4 * kSignalStackBytes;
}
#endif

// Sets the stack size of threads that name none. libc's default would be `ulimit -s`, or 2 MiB if
// that is unlimited.
void SetStackOfThreads() {
  pthread_attr_t attributes;
  if (pthread_attr_init(&attributes) != 0) return;
  if (pthread_attr_setstacksize(&attributes, kStackBytes) == 0) {
    pthread_setattr_default_np(&attributes);
  }
  pthread_attr_destroy(&attributes);
}

}  // namespace

int FailedThreads() { return g_failed_threads; }

void ApplyProcessSettings() {
  rlimit descriptors{};
  if (getrlimit(RLIMIT_NOFILE, &descriptors) == 0) {
    descriptors.rlim_cur = descriptors.rlim_max;
    setrlimit(RLIMIT_NOFILE, &descriptors);
  }
  SetStackOfThreads();
  mallopt(M_MMAP_THRESHOLD, 1 << 20);
  mallopt(M_ARENA_MAX, 4);
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
}

}  // namespace fox

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* attributes,
                              void* (*start)(void*), void* argument) {
  using Create = int (*)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
  static const auto create = reinterpret_cast<Create>(dlsym(RTLD_NEXT, "pthread_create"));
  fox::Start* const wrapped =
      fox::HasLargeStack(attributes) ? new (std::nothrow) fox::Start{start, argument} : nullptr;
  const int error = wrapped == nullptr
                        ? create(thread, attributes, start, argument)
                        : create(thread, attributes, fox::RunWithSignalStack, wrapped);
  if (error == 0) return 0;
  delete wrapped;
  ++fox::g_failed_threads;
  return error;
}
#endif
