// The first page of a decode row's window, by which BeginStep plans its splits and decode attention
// visits them.
#pragma once

#include <cstdint>

#include "kernels/cuda/ptx/global_memory.cuh"
#include "kernels/cuda/runtime/step_schedule.h"
#include "kernels/paged_kv.h"

namespace fox::cuda {

// The first page that `seq_head`, of page list `list`, may see, or any of the `heads` from it on,
// which share the list.
__device__ inline int FirstPage(const StepSchedule& schedule, const PagedKv& kv, int64_t list,
                                int seq_head, int heads) {
  const int32_t* visible = schedule.first_visible_page;
  if (visible == nullptr) return LoadCoherent(kv.first_live + list);
  int first = LoadCoherent(visible + seq_head);
#pragma unroll 1
  for (int h = 1; h < heads; ++h) first = min(first, LoadCoherent(visible + seq_head + h));
  return first;
}

}  // namespace fox::cuda
