// Where each attention tile's view begins under a bound: for every (query head, tile), the first
// page that may not be dropped for all of the tile's rows (kernels/acp.h; acp.md section 3). A
// search over the page bounds, which rise, all tiles and heads side by side. Nothing is read per
// key, but without QK-norm (acp.md section 5), where the rows' own queries and keys are.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/attention_params.h"
#include "kernels/batch_view.h"
#include "kernels/cuda/runtime/step_schedule.h"

namespace fox::cuda {

// Whether boundaries follow from the rows' own queries: in paper mode without QK-norm, of which a
// bound that is not merely diagonal tells. Such heads evict nothing.
bool UsesPerQueryBound(const AttentionParams& params);

// Fills work.boundary for the tiles of work.tiles and zeroes work.tile_counter. With AcpMode::kOff
// every head begins at its first live page. `max_tiles`: at least *work.num_tiles, known to the
// host. After Append of the layer. Enqueues on `stream`; gives the launch's error.
cudaError_t PruneBoundaries(const BatchView& batch, const AttentionParams& params,
                            const PagedKv& kv, const StepSchedule& schedule, int max_tiles,
                            cudaStream_t stream);

// The same for the sequences with exactly one row: fills work.window, not null here. Worth it where
// UsesPerQueryBound(); elsewhere eviction leaves decoding rows next to nothing to skip. The layer's
// decode items are to be planned next (PlanSplits of paging.h).
cudaError_t FindFirstVisiblePages(const BatchView& batch, const AttentionParams& params,
                                  const PagedKv& kv, const StepSchedule& schedule,
                                  cudaStream_t stream);

}  // namespace fox::cuda
