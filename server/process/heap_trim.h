// HeapTrim: gives memory that calls and connections have left in the heap back to the system. The
// allocator keeps what lies between blocks in use, once for each of its arenas: a flood that is
// over would stay resident for good.
#pragma once

#include <cstdint>

namespace fox {

// Used by one thread.
class HeapTrim {
 public:
  static constexpr double kSecondsBetweenLooks = 2;
  // Resident bytes that no block of the heap uses, more than after the last trim: these, or a
  // quarter of what is in use. A trim takes 0.2 ms a MiB, in which others wait for the heap.
  static constexpr int64_t kLeastToTrim = 16 << 20;

  // Looks, unless it did so less than kSecondsBetweenLooks ago: `now` is in seconds on a clock that
  // goes on.
  void Look(double now);

 private:
  double next_look_ = 0;
  int64_t least_unused_ = 0;  // since the last trim; what is not the heap's is among it
};

}  // namespace fox
