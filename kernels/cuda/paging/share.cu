// Share: one slot gets the full pages of another and its state at the last page end.
// kernels/cpu/share.cc lists the copied state and says why it suffices.
#include "kernels/cuda/paging/page_pool.cuh"
#include "kernels/cuda/paging/paging.h"
#include "kernels/cuda/primitives/kv_index.cuh"
#include "kernels/cuda/ptx/dependent_launch.cuh"
#include "kernels/cuda/runtime/launch.h"

namespace fox::cuda {
namespace {

constexpr int kShareThreads = 128;
constexpr int kMaxShareBlocks = 128;

// `count` elements of every slot.
template <typename T>
__device__ void CopySlot(const T* source, T* out, int64_t count, int from, int to) {
  for (int64_t i = blockIdx.x * kShareThreads + threadIdx.x; i < count;
       i += gridDim.x * kShareThreads) {
    out[to * count + i] = source[from * count + i];
  }
}

// Copies the raw rows of the page end, which become the last raw rows, too, at index `last_to`.
__device__ void CopyRows(void* page_end, void* last, int64_t count, int from, int to, int last_to) {
  if (page_end == nullptr) return;
  const float* rows = static_cast<const float*>(page_end);
  CopySlot(rows, static_cast<float*>(last), count, from, last_to);
  CopySlot(rows, static_cast<float*>(page_end), count, from, to);
}

// c at the last page end: of the last token, or the base of the page that is not full.
__device__ void CopyGates(const PagedKv& kv, int from, int to, int64_t length, int pages) {
  const int64_t end = int64_t{pages} * kPageTokens;
  const int64_t heads = kv.shape.heads_per_slot();
  const int group = kv.shape.group();
  for (int64_t h = blockIdx.x * kShareThreads + threadIdx.x; h < heads;
       h += gridDim.x * kShareThreads) {
    double c = kv.cum_log_f[kv.HeadIndex(kv.After(from, length), 0, 0) + h];
    if (length != end) {
      const int64_t page = kv.Table(kv.ListIndex(from, 0, 0) + h / group)[pages];
      c = kv.page_cum_log_f[page * group + h % group];
    }
    kv.cum_log_f[kv.HeadIndex(kv.After(to, end), 0, 0) + h] = c;
  }
}

// One warp per list.
__global__ void __launch_bounds__(kShareThreads)
    ShareKernel(const int from, const int to, const PagedKv kv) {
  TriggerDependents();
  WaitOnDependencies();
  constexpr int kWarps = kShareThreads / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t lists = kv.shape.lists_per_slot();
  const int64_t length = kv.length[from];
  const int pages = static_cast<int>(length / kPageTokens);
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp; i < lists;
       i += static_cast<int64_t>(gridDim.x) * kWarps) {
    const int64_t source = kv.ListIndex(from, 0, 0) + i, list = kv.ListIndex(to, 0, 0) + i;
    const int first = kv.first_live[source];
    for (int p = first; p < pages; p += kWarp) {
      const int count = min(kWarp, pages - p);
      const int32_t page = lane < count ? kv.Table(source)[p + lane] : -1;
      SharePages(kv, to, from, page, count);
      if (lane < count) kv.Table(list)[p + lane] = page;
    }
    if (lane == 0) {
      kv.first_live[list] = first;
      kv.max_log_evicted_mass[list] = kv.max_log_evicted_mass[source];
    }
  }
  const int64_t heads = kv.shape.heads_per_slot();
  CopyGates(kv, from, to, length, pages);
  CopySlot(kv.evicted_log_mass, kv.evicted_log_mass, heads, from, to);
  CopySlot(kv.log_mass, kv.log_mass, heads, from, to);
  CopySlot(kv.decay_sum, kv.decay_sum, heads, from, to);
  CopySlot(kv.key_sum, kv.key_sum, heads * kv.shape.head_dim, from, to);
  const int64_t row = lists * kv.shape.head_dim;
  const int last_to = kv.After(to, int64_t{pages} * kPageTokens);
  CopyRows(kv.page_end_k, kv.last_k, row, from, to, last_to);
  CopyRows(kv.page_end_v, kv.last_v, row, from, to, last_to);
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    kv.length[to] = static_cast<int64_t>(pages) * kPageTokens;
  }
}

}  // namespace

cudaError_t Share(int32_t from, int32_t to, const PagedKv& kv, cudaStream_t stream) {
  return Launch(ShareKernel,
                BlocksFor(kv.shape.lists_per_slot(), kShareThreads / kWarp, kMaxShareBlocks),
                kShareThreads, 0, stream, static_cast<int>(from), static_cast<int>(to), kv);
}

}  // namespace fox::cuda
