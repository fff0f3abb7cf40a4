// Settings of the C library's heap and of Abseil's locks. See process_settings.h.
#include "server/process/process_settings.h"

#include <malloc.h>
#include <sys/resource.h>

#include "absl/synchronization/mutex.h"

namespace fox {

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
