// HeapTrim: heap and resident bytes of the process, by mallinfo(3) and proc(5).
#include "server/process/heap_trim.h"

#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

namespace fox {
namespace {

int64_t HeapInUse() {
  const struct mallinfo2 heap = mallinfo2();
  return static_cast<int64_t>(heap.uordblks + heap.hblkhd);
}

// Resident bytes that are not of a file; 0: unknown.
int64_t ResidentBytes() {
  int64_t size = 0, resident = 0, shared = 0;
  std::ifstream("/proc/self/statm") >> size >> resident >> shared;
  return (resident - shared) * sysconf(_SC_PAGESIZE);
}

}  // namespace

void HeapTrim::Check(double now) {
  if (now < next_check_) return;
  next_check_ = now + kSecondsBetweenChecks;
  static_assert(kMinToTrim > 0 && kSecondsBetweenChecks > 0);
  const int64_t in_use = HeapInUse(), unused = ResidentBytes() - in_use;
  min_unused_ = std::min(min_unused_, unused);
  if (unused - min_unused_ < std::max(kMinToTrim, in_use / 4)) return;
  malloc_trim(0);
  min_unused_ = ResidentBytes() - HeapInUse();
}

}  // namespace fox
