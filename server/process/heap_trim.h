// HeapTrim: returns unused memory of the heap to the system. The allocator keeps free memory
// between blocks that are in use, in each of its arenas, so the memory of a past flood of calls
// would stay resident for good.
#pragma once

#include <cstdint>

namespace fox {

// Used by one thread.
class HeapTrim {
 public:
  static constexpr double kSecondsBetweenChecks = 2;
  // A trim happens when the resident bytes outside heap blocks have grown, since the last trim, by
  // this or by a quarter of the bytes in use, whichever is more. A trim takes 0.2 ms a MiB, during
  // which other threads wait for the heap.
  static constexpr int64_t kMinToTrim = 16 << 20;

  // Checks, and trims if needed; does nothing within kSecondsBetweenChecks of the last check.
  // `now`: seconds on a steady clock.
  void Check(double now);

 private:
  double next_check_ = 0;
  int64_t min_unused_ = 0;  // smallest value since the last trim; includes memory outside the heap
};

}  // namespace fox
