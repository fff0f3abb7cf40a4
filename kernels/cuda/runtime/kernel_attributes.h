// The CUDA runtime's answers about a kernel on the current device. They are kept for each (device,
// kernel): one process may use several devices, and one binary may hold code of several
// architectures. Any thread.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

namespace fox::cuda {

// A kernel of any signature, as the runtime names it.
template <typename... Parameters>
const void* KernelAddress(void (*kernel)(Parameters...)) {
  return reinterpret_cast<const void*>(kernel);
}

// The architecture for which the code that the device runs was compiled, as 10 * major + minor:
// __CUDA_ARCH__ / 10 of that code. A device may run code, by way of PTX, that is older than itself.
// 0 if the runtime does not know.
int CompiledArchitecture(const void* kernel);

// True if that code has the instructions that came with compute capability 9.0: clusters, and the
// waits of programmatic dependent launch.
inline bool HasSm90Code(const void* kernel) { return CompiledArchitecture(kernel) >= 90; }

// True if that code takes at least `registers` registers a thread. A body that only traps takes a
// few; kernels for one architecture have it in code for all others. False if there is no code.
bool TakesRegisters(const void* kernel, int registers);

// Bytes of shared memory that a block may have: on every supported device (compute capability 8.6,
// 8.9 and 12.x have the least), and on Hopper.
inline constexpr int kPortableSmem = 99 * 1024;
inline constexpr int kHopperSmem = 227 * 1024;

// Lets the kernel have `bytes` of dynamic shared memory. REQUIRES: the same number every time.
cudaError_t AllowDynamicSmem(const void* kernel, int bytes);

// AllowDynamicSmem of kBytes, checked at compile time: they must fit on the devices that the kernel
// is for.
template <size_t kBytes, int kAvailable = kPortableSmem>
cudaError_t AllowDynamicSmem(const void* kernel) {
  static_assert(kBytes <= kAvailable);
  return AllowDynamicSmem(kernel, static_cast<int>(kBytes));
}

// The number of blocks of `threads` threads, with `bytes` of dynamic shared memory each, that the
// device holds at once. REQUIRES: the same numbers every time.
cudaError_t ResidentBlocks(const void* kernel, int threads, size_t bytes, int* blocks);

// The number of clusters of `size` blocks, with `bytes` of dynamic shared memory each, that the
// device holds at once. REQUIRES: the same numbers every time.
cudaError_t ResidentClusters(const void* kernel, int threads, size_t bytes, int size,
                             int* clusters);

// The current device's multiprocessors, for launches of one block on each.
cudaError_t CountMultiprocessors(int* count);

}  // namespace fox::cuda
