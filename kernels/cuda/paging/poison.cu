// The canary of free pages (PagedKvShape::poison_free_pages): fills them with NaN and checks that
// nothing has written to one since. For debugging: every call scans the whole free stack.
#include "kernels/core/e4m3.h"
#include "kernels/cuda/paging/page_pool.cuh"
#include "kernels/cuda/paging/paging.h"
#include "kernels/cuda/ptx/dependent_launch.cuh"
#include "kernels/cuda/runtime/launch.h"

namespace fox::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kMaxBlocks = 2112;

// A byte of a free page: NaN's bits, and in pages of 8 bits the exponents' of NaN.
constexpr uint32_t kPoison = ~0u, kExponentPoison = 0x80808080u;
static_assert(static_cast<int8_t>(kExponentPoison & 0xff) == kNoExponent);

// visit(word, poison) for the thread's 16-byte words of the keys, values and exponents of all free
// pages.
template <typename Visit>
__device__ void ForEachFreeWord(const PagedKv& kv, const Visit& visit) {
  constexpr int kExponentWords = 2 * kPageTokens / 16;
  const int words = kPageTokens * kv.shape.head_dim / (kv.exponents == nullptr ? 8 : 16);
  for (int i = static_cast<int>(blockIdx.x); i < FreePages(kv); i += static_cast<int>(gridDim.x)) {
    const int32_t page = kv.free_stack[i];
    if (!Exists(kv, page)) continue;
    for (int w = static_cast<int>(threadIdx.x); w < words; w += kThreads) {
      visit(static_cast<uint4*>(kv.keys)[static_cast<int64_t>(page) * words + w], kPoison);
      visit(static_cast<uint4*>(kv.values)[static_cast<int64_t>(page) * words + w], kPoison);
    }
    if (kv.exponents == nullptr || threadIdx.x >= kExponentWords) continue;
    visit(reinterpret_cast<uint4*>(kv.exponents)[int64_t{page} * kExponentWords + threadIdx.x],
          kExponentPoison);
  }
}

__global__ void __launch_bounds__(kThreads) PoisonKernel(const PagedKv kv) {
  TriggerDependents();
  WaitOnDependencies();
  ForEachFreeWord(kv, [](uint4& word, uint32_t x) { word = {x, x, x, x}; });
}

__global__ void __launch_bounds__(kThreads) CheckPoisonKernel(const PagedKv kv) {
  TriggerDependents();
  WaitOnDependencies();
  uint32_t changed = 0;
  ForEachFreeWord(kv, [&](const uint4& word, uint32_t x) {
    changed |= (word.x ^ x) | (word.y ^ x) | (word.z ^ x) | (word.w ^ x);
  });
  if (changed != 0) Report(kv, PoolFault::kWrittenWhileFree);
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
