// The kernels before and after PrefillSm90 where splits over keys may run in parallel
// (runtime/key_splits.h): the plan, and the merge of partial results.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/cuda/runtime/step_schedule.h"
#include "kernels/interface/batch_view.h"

namespace fox::cuda {

struct PagedSource;

// False if all rows are too early for splits, as far as the host knows; the device decides for each
// head tile.
inline bool MaySplit(const BatchView& batch, const KeySplits& splits) {
  return (batch.max_tokens - 1) / kTileRows >= splits.first_split_tile;
}

// Fills schedule.key_splits for the tiles and boundaries of the layer, of the head tiles whose
// lists schedule.wide has, so that these have all of its room. Both enqueue on `stream` and return
// the launch's error.
cudaError_t PlanKeySplits(const PagedKvShape& shape, const StepSchedule& schedule,
                          cudaStream_t stream);

// Outputs, and log sums if wanted, of the rows whose splits ran in parallel; additions follow the
// order of the splits. head_dim 32, 64 or 128.
template <int kHeadDim>
cudaError_t MergeKeySplits(const PagedSource& source, cudaStream_t stream);

}  // namespace fox::cuda
