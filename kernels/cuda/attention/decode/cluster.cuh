// Decode attention of small batches (BatchView::small), where latency is all: a cluster of blocks
// takes a whole window at once and merges through its shared memory, with no way over the device's.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/cuda/attention/decode/splits.cuh"

namespace fox::cuda {

// Whether this device and build have clusters, and blocks of this head_dim fit.
bool DecodeClusterRuns(int head_dim);

// DecodeAttention for batches in which every sequence has one row, behind AppendDecode; the work
// splits are not looked at. Any length, but slow for long ones. REQUIRES: DecodeClusterRuns.
cudaError_t DecodeCluster(const decode::Decode& arguments, cudaStream_t stream);

}  // namespace fox::cuda
