// Tensor maps: what a bulk tensor copy (kernels/cuda/ptx/tma.cuh) has to know of a bf16 tensor in
// global memory. The driver encodes them; it is found at run time, so that libcuda need not be
// linked.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <span>

namespace fox::cuda {

// One dimension: its size, the elements from one index to the next, and how many of them a copy
// brings.
struct TensorDim {
  int64_t size, stride;
  int box;
};

// For 2 to 4 dimensions, the first contiguous (its stride is not looked at) with a box of 32 or 64
// columns, which fill one line of the 64- or 128-byte swizzle. REQUIRES: data 16-byte aligned,
// strides multiples of 8, in any order. cudaErrorNotSupported without a driver that can encode,
// cudaErrorInvalidValue where it refuses. Any thread.
cudaError_t EncodeTensorMap(const void* data, std::span<const TensorDim> dims, CUtensorMap* map);

}  // namespace fox::cuda
