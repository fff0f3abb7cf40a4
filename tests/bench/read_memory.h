// Reads device memory in a stream, as fast as it goes: what every memory-bound kernel is compared
// with.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace fox::cuda {

// Reads `bytes` (a multiple of 16, not 0) at `data`; `sink` [1] may get a number without meaning.
// Enqueues on `stream`; gives the launch's error.
cudaError_t ReadMemory(const void* data, size_t bytes, uint32_t* sink, cudaStream_t stream);

}  // namespace fox::cuda
