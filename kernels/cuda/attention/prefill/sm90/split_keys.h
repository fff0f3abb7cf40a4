// What comes before and after PrefillSm90 where splits over keys may run side by side
// (runtime/key_splits.h): the plan, and the merge of partial results.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/batch_view.h"
#include "kernels/cuda/runtime/step_schedule.h"

namespace fox::cuda {

struct PagedSource;

// False: no sequence brings few enough rows, so all long walks are chained. What the host can tell;
// the device looks at each.
inline bool MaySplit(const BatchView& batch) {
  return batch.num_seqs > 1 || batch.num_rows <= kMostSplitRows;
}

// Fills schedule.key_splits for the tiles and boundaries of the layer. REQUIRES: at most kMaxSeqs
// sequences. Both enqueue on `stream` and give the launch's error.
cudaError_t PlanKeySplits(const BatchView& batch, int q_heads, const StepSchedule& schedule,
                          cudaStream_t stream);

// Outputs, and log sums if wanted, of the rows whose splits ran side by side; the order of the
// additions is that of the splits. head_dim 32, 64 or 128.
template <int kHeadDim>
cudaError_t MergeKeySplits(const PagedSource& source, cudaStream_t stream);

}  // namespace fox::cuda
