// Settings of the C library's heap and of Abseil's locks. The executable's pthread_create precedes
// that of libc for all libraries. See process_settings.h.
#include "server/process/process_settings.h"

#include <dlfcn.h>
#include <malloc.h>
#include <pthread.h>
#include <sys/resource.h>

#include <atomic>

#include "absl/synchronization/mutex.h"

namespace fox {
namespace {

std::atomic<int> g_failed_threads{0};

}  // namespace

int FailedThreads() { return g_failed_threads; }

void ApplyProcessSettings() {
  rlimit descriptors{};
  if (getrlimit(RLIMIT_NOFILE, &descriptors) == 0) {
    descriptors.rlim_cur = descriptors.rlim_max;
    setrlimit(RLIMIT_NOFILE, &descriptors);
  }
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
  const int error = create(thread, attributes, start, argument);
  if (error != 0) ++fox::g_failed_threads;
  return error;
}
#endif
