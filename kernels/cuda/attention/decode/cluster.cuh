// Decode attention of small batches (BatchView::small), where latency is all: a cluster of blocks
// takes a whole window at once and merges through its shared memory, with no way over the device's.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/cuda/attention/decode/splits.cuh"

namespace fox::cuda {

// DecodeAttention for batches in which every sequence has one row and none more than
// kSmallBatchTokens, behind AppendDecode; the work splits are not looked at. REQUIRES:
// DecodeClusterRuns (decode.h).
cudaError_t DecodeCluster(const decode::Decode& arguments, cudaStream_t stream);

}  // namespace fox::cuda
