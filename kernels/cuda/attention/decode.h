// Decode attention: one row per sequence over its heads' live pages. Work is cut into items of a
// few pages at fixed places, so what a row computes does not depend on the batch; items are dealt
// out evenly over the chip, and the last one of a (sequence, head) to finish merges them in order.
// Small batches take another kernel where the device has clusters (decode_cluster.h).
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/cuda/step_work.h"
#include "kernels/op_params.h"

namespace fox::cuda {

// The sequences of exactly one row; the others are left alone. q, out: bf16; pages: bf16,
// [64, head_dim], 16-byte aligned; log_sum float32 or empty. A row visits its list's pages from
// work.window on, or all live ones where that is null (first_live follows the bound).
// blocks_total, blocks_skipped: added to as in prefill.h. REQUIRES: head_dim 16, 32, 64 or 128;
// work.item_pages even. Enqueues on `stream`; gives the launch's error.
cudaError_t DecodeAttention(const BatchView& batch, const AttentionParams& params,
                            const PagedKv& kv, const StepWork& work, cudaStream_t stream);

}  // namespace fox::cuda
