// A kernel that only reads: every block 64 KiB, 16 bytes a thread at a time, eight loads in
// flight. See read_memory.h.
#include "tests/bench/read_memory.h"

namespace fox::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kLoads = 8;
constexpr size_t kPerBlock = kThreads * kLoads;

__device__ __forceinline__ uint4 LoadOnce(const uint4* at) {
  uint4 value;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "l"(at));
  return value;
}

__global__ __launch_bounds__(kThreads) void ReadKernel(const uint4* data, size_t count,
                                                       uint32_t* sink) {
  const size_t first = blockIdx.x * kPerBlock + threadIdx.x;
  uint4 part[kLoads] = {};
#pragma unroll
  for (int i = 0; i < kLoads; ++i) {
    const size_t at = first + static_cast<size_t>(i) * kThreads;
    if (at < count) part[i] = LoadOnce(data + at);
  }
  uint32_t sum = 0;
#pragma unroll
  for (int i = 0; i < kLoads; ++i) sum += part[i].x ^ part[i].y ^ part[i].z ^ part[i].w;
  // Hardly ever true for random data, but the compiler cannot know.
  if (sum == 0x9e3779b9u) *sink = sum;
}

}  // namespace

cudaError_t ReadMemory(const void* data, size_t bytes, uint32_t* sink, cudaStream_t stream) {
  const size_t count = bytes / sizeof(uint4);
  const auto blocks = static_cast<unsigned>((count + kPerBlock - 1) / kPerBlock);
  ReadKernel<<<blocks, kThreads, 0, stream>>>(static_cast<const uint4*>(data), count, sink);
  return cudaGetLastError();
}

}  // namespace fox::cuda
