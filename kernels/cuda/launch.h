// Launching kernels so that the next one may start while this one ends (programmatic dependent
// launch). For .cu files only.
//
// Contract of every kernel of this backend: it calls WaitForPrevious() before it touches anything
// that an earlier kernel of the step may write or still read, its own outputs included; weights and
// constants may be read before. It may call LetNextStart() at any time, from all its threads; best
// at the start, for the next kernel waits for this one's end all the same.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>

namespace fox::cuda {

#if defined(__CUDACC__)
__device__ __forceinline__ void WaitForPrevious() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

__device__ __forceinline__ void LetNextStart() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
#endif

// Launches kernel<<<grid, block, shared, stream>>>(arguments...), overlapping its start with the
// end of the previous kernel where the device can (compute capability 9.0 and later).
template <typename... Parameters, typename... Arguments>
cudaError_t Launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared_bytes,
                   cudaStream_t stream, Arguments&&... arguments) {
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return cudaSuccess;
  static const bool overlaps = [] {
    int device = 0, major = 0;
    return cudaGetDevice(&device) == cudaSuccess &&
           cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) ==
               cudaSuccess &&
           major >= 9;
  }();
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &attribute;
  config.numAttrs = overlaps ? 1 : 0;
  return cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...);
}

}  // namespace fox::cuda
