// WorkMeter: where a thread's stack ends. See work_meter.h.
#include "models/grammar/work_meter.h"

#include <pthread.h>

#include <algorithm>
#include <cstddef>

#include "kernels/core/check.h"

namespace fox {
namespace {

constexpr ptrdiff_t kStackBytes = 2 << 20;
// Left free at the end of the stack: for calls between two checks, a throw, and signal handlers.
constexpr size_t kSpareBytes = 128 << 10;
static_assert(kSpareBytes < kStackBytes);

// The lowest usable address of the thread's stack; null if the system does not tell.
const char* StackBegin() {
  pthread_attr_t attributes;
  if (pthread_getattr_np(pthread_self(), &attributes) != 0) return nullptr;
  void* begin = nullptr;
  size_t size = 0, guard = 0;
  pthread_attr_getstack(&attributes, &begin, &size);
  pthread_attr_getguardsize(&attributes, &guard);
  pthread_attr_destroy(&attributes);
  return static_cast<const char*>(begin) + guard;
}

}  // namespace

WorkMeter::WorkMeter(int64_t steps) : steps_(steps) {
  FOX_CHECK(steps >= 0);
  FOX_CHECK(work_limits.stack_end == nullptr);          // no other one in this thread
  thread_local const char* const begin = StackBegin();  // once a thread: it is a system call
  const auto* const here = static_cast<const char*>(__builtin_frame_address(0));
  const char* const end = here - kStackBytes;
  work_limits = {steps, begin == nullptr ? end : std::max(end, begin + kSpareBytes), nullptr};
}

}  // namespace fox
