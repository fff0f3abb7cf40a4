// Reads device memory in a stream at full speed: the peak for all memory-bound kernels.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace fox::cuda {

// Enqueues on `stream` a read of `bytes` (a multiple of 16, not 0) at `data`. May write `sink` [1],
// so that the compiler keeps the reads. Returns the launch's error.
cudaError_t ReadMemory(const void* data, size_t bytes, uint32_t* sink, cudaStream_t stream);

}  // namespace fox::cuda
