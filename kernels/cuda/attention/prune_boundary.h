// Prune boundaries: for every (query head, tile), the first page that may not be dropped for all of
// the tile's rows (kernels/acp.h; acp.md section 4). A search over the page bounds, which rise, for
// all tiles and heads in parallel. Nothing is read per key.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/cuda/runtime/step_schedule.h"
#include "kernels/interface/attention_params.h"
#include "kernels/interface/batch_view.h"

namespace fox::cuda {

// Fills schedule.boundary for the tiles of schedule.tiles and zeroes schedule.tile_counter. With
// AcpMode::kOff every head begins at its first live page. `max_tiles`: at least
// *schedule.num_tiles, known to the host. After Append of the layer. Enqueues on `stream`; returns
// the launch's error.
cudaError_t PruneBoundaries(const BatchView& batch, const AttentionParams& params,
                            const PagedKv& kv, const StepSchedule& schedule, int max_tiles,
                            cudaStream_t stream);

}  // namespace fox::cuda
