// Where each attention tile's view begins under a bound: for every (query head, tile), the first
// page that may not be dropped for the tile's first row (kernels/acp.h; acp.md section 3). A search
// over the page scores, which rise, all tiles and heads side by side; nothing is read per key.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/cuda/step_work.h"
#include "kernels/op_params.h"

namespace fox::cuda {

// Fills work.boundary for the tiles of work.tiles and zeroes work.tile_counter. A head whose
// any_logit is infinite (paper, no QK-norm) begins at its first live page, as does every head with
// AcpMode::kOff. `max_tiles`: at least *work.num_tiles, known to the host. After Append of the
// layer. Enqueues on `stream`; gives the launch's error.
cudaError_t PruneBoundaries(const BatchView& batch, const AttentionParams& params,
                            const PagedKv& kv, const StepWork& work, int max_tiles,
                            cudaStream_t stream);

}  // namespace fox::cuda
