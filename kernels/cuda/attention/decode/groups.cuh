// Decode attention of query heads that share a kv head: their pages are read once.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/cuda/attention/decode/splits.cuh"

namespace fox::cuda {

// DecodeAttention where HeadsTogether() is above one. REQUIRES: head_dim 64 or 128.
cudaError_t DecodeGroupsBlocks(const PagedKvShape& shape, int* blocks);  // DecodeBlocks
cudaError_t DecodeGroups(const decode::Decode& arguments, cudaStream_t stream);

}  // namespace fox::cuda
