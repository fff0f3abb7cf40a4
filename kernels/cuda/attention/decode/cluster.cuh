// Decode attention of small batches (BatchView::small), which latency dominates: a cluster of
// blocks attends to a whole window at once and merges in shared memory, without global memory.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/cuda/attention/decode/splits.cuh"

namespace fox::cuda {

// DecodeAttention for batches in which every sequence has one row and none more than
// kSmallBatchTokens, after AppendDecode; planned splits are not used. REQUIRES: DecodeClusterRuns
// (decode.h).
cudaError_t DecodeCluster(const decode::Decode& arguments, cudaStream_t stream);

}  // namespace fox::cuda
