// Loops over OpenMP's threads, the pool that oneDNN uses too. Each index is run by exactly one
// thread.
#pragma once

#include <cstdint>

namespace fox {

// body(i) for i in [0, count), handed out in order, one by one. Small counts of small work should
// not come here: `parallel` false runs on the caller.
template <typename Body>
void ParallelFor(int64_t count, bool parallel, const Body& body) {
#pragma omp parallel for schedule(dynamic, 1) if (parallel && count > 1)
  for (int64_t i = 0; i < count; ++i) body(i);
}

// Rows of at least this many elements in all are worth waking the other threads for.
inline constexpr int64_t kParallelElements = 16384;

}  // namespace fox
