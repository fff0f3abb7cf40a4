// Prune boundaries: for every (query head, tile), the first page that may not be dropped for all of
// the tile's rows (kernels/paging/acp.h; acp.md section 4). A search over the page bounds, which
// rise, for all tiles and heads in parallel. Nothing is read per key, except without QK-norm
// (acp.md section 5), where the rows' own queries and keys are read.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/cuda/runtime/step_schedule.h"
#include "kernels/interface/attention_params.h"
#include "kernels/interface/batch_view.h"

namespace fox::cuda {

// Whether boundaries follow from the rows' own queries: in paper mode without QK-norm, which shows
// in a bound that is not merely diagonal. Such heads evict nothing.
bool UsesPerQueryBound(const AttentionParams& params);

// Fills schedule.boundary for the tiles of schedule.tiles and zeroes schedule.tile_counter. With
// AcpMode::kOff every head begins at its first live page. `max_tiles`: at least
// *schedule.num_tiles, known to the host. After Append of the layer. Enqueues on `stream`; returns
// the launch's error.
cudaError_t PruneBoundaries(const BatchView& batch, const AttentionParams& params,
                            const PagedKv& kv, const StepSchedule& schedule, int max_tiles,
                            cudaStream_t stream);

// The same for the sequences with exactly one row: fills schedule.first_visible_page, not null
// here. Useful where UsesPerQueryBound(), because elsewhere eviction has freed nearly all pages
// that a decode row could skip. PlanSplits (paging.h) must follow.
cudaError_t FindFirstVisiblePages(const BatchView& batch, const AttentionParams& params,
                                  const PagedKv& kv, const StepSchedule& schedule,
                                  cudaStream_t stream);

}  // namespace fox::cuda
