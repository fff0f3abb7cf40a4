// The two instructions of programmatic dependent launch, nothing before Hopper; the contract of the
// kernels that use them is in runtime/launch.h.
#pragma once

namespace fox::cuda {

__device__ __forceinline__ void WaitOnDependencies() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

__device__ __forceinline__ void TriggerDependents() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

}  // namespace fox::cuda
