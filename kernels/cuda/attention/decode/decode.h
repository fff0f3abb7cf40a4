// Decode attention: one row per sequence over its heads' live pages. Windows are cut into splits of
// a few pages; splits are distributed evenly over the device, and the block with a window's last
// split merges the window's splits in order. Small batches use another kernel where the device has
// clusters (cluster.cu), with the same sums in the same order: a row's bits depend on its own
// windows alone, never on the batch. A third kernel computes query heads that share a kv head
// together (HeadsTogether), in every batch; there the warp that stores a head's last partial
// results merges the head.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/cuda/runtime/step_schedule.h"
#include "kernels/interface/attention_params.h"
#include "kernels/interface/batch_view.h"

namespace fox::cuda {

// The sequences of exactly one row; the others are not touched. q, out: bf16; pages: bf16 or e4m3,
// [64, head_dim]; rows of q, of the output gate and of pages 16-byte aligned, rows of out 4-byte
// aligned; lse float32 or empty. The output norm is computed in float32, before the one rounding. A
// row visits all live pages of its list (first_live follows the bound). blocks_total,
// blocks_pruned: added to as in prefill.h. reads_early: no kernel that has not ended when this one
// starts (launch.h) writes a list or a page but the rows' own ones. REQUIRES: head_dim 16, 32, 64
// or 128. Enqueues on `stream`; gives the launch's error.
cudaError_t DecodeAttention(const BatchView& batch, const AttentionParams& params,
                            const PagedKv& kv, const StepSchedule& schedule, bool reads_early,
                            cudaStream_t stream);

// The number of blocks of the kernel for larger batches: as many as are resident on the device at
// once (StepSchedule::decode_blocks, unless by clusters; where the kernel runs beside prompts, one
// fewer on each SM).
cudaError_t DecodeBlocks(const PagedKvShape& shape, int* blocks);

// Whether small batches (BatchView::small) have a kernel of their own (StepSchedule::by_clusters):
// device and build have clusters, and no query heads are computed together. The clusters of more
// rows do not fit on the device at once, so the other kernel is faster for them.
bool DecodeClusterRuns(const PagedKvShape& shape);

}  // namespace fox::cuda
