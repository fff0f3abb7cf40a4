// The canary of free pages (PagedKvShape::poison_free_pages): fills them with NaN and checks that
// nothing has written to one since. For debugging: every call scans the whole free stack.
#include "kernels/cuda/paging/page_pool.cuh"
#include "kernels/cuda/paging/paging.h"
#include "kernels/cuda/ptx/dependent_launch.cuh"
#include "kernels/cuda/runtime/launch.h"

namespace fox::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kMaxBlocks = 2112;

// visit(word) for the thread's 16-byte words of the keys and values of all free pages.
template <typename Visit>
__device__ void ForEachFreeWord(const PagedKv& kv, const Visit& visit) {
  const int words = kPageTokens * kv.shape.head_dim / 8;  // bf16
  for (int i = static_cast<int>(blockIdx.x); i < FreePages(kv); i += static_cast<int>(gridDim.x)) {
    const int32_t page = kv.free_stack[i];
    if (!Exists(kv, page)) continue;
    for (int w = static_cast<int>(threadIdx.x); w < words; w += kThreads) {
      visit(static_cast<uint4*>(kv.keys)[static_cast<int64_t>(page) * words + w]);
      visit(static_cast<uint4*>(kv.values)[static_cast<int64_t>(page) * words + w]);
    }
  }
}

__global__ void __launch_bounds__(kThreads) PoisonKernel(const PagedKv kv) {
  TriggerDependents();
  WaitOnDependencies();
  ForEachFreeWord(kv, [](uint4& word) { word = {~0u, ~0u, ~0u, ~0u}; });
}

__global__ void __launch_bounds__(kThreads) CheckPoisonKernel(const PagedKv kv) {
  TriggerDependents();
  WaitOnDependencies();
  uint32_t all = ~0u;
  ForEachFreeWord(kv, [&](uint4& word) { all &= word.x & word.y & word.z & word.w; });
  if (all != ~0u) Report(kv, PoolFault::kWrittenWhileFree);
}

}  // namespace

cudaError_t PoisonFreePages(const PagedKv& kv, cudaStream_t stream) {
  if (!kv.shape.poison_free_pages) return cudaSuccess;
  return Launch(PoisonKernel, BlocksFor(kv.shape.num_pages, 1, kMaxBlocks), kThreads, 0, stream,
                kv);
}

cudaError_t CheckFreePages(const PagedKv& kv, cudaStream_t stream) {
  if (!kv.shape.poison_free_pages) return cudaSuccess;
  return Launch(CheckPoisonKernel, BlocksFor(kv.shape.num_pages, 1, kMaxBlocks), kThreads, 0,
                stream, kv);
}

}  // namespace fox::cuda
