// FailedThreads: see failed_threads.h. The executable's pthread_create precedes that of libc for
// all libraries.
#include "server/process/failed_threads.h"

#include <dlfcn.h>
#include <pthread.h>

#include <atomic>

namespace fox {
namespace {

std::atomic<int> g_failed{0};

}  // namespace

int FailedThreads() { return g_failed; }

}  // namespace fox

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* attributes,
                              void* (*start)(void*), void* argument) {
  using Create = int (*)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
  static const auto create = reinterpret_cast<Create>(dlsym(RTLD_NEXT, "pthread_create"));
  const int error = create(thread, attributes, start, argument);
  if (error != 0) ++fox::g_failed;
  return error;
}
#endif
