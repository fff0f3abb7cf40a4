// SaveSlot and LoadSlot: a slot's state and live pages into one piece of device memory and back, in
// the stream's order. See kernels/paging/slot_image.h for where everything goes.
#include "kernels/core/check.h"
#include "kernels/cuda/paging/page_pool.cuh"
#include "kernels/cuda/paging/paging.h"
#include "kernels/cuda/primitives/kv_index.cuh"
#include "kernels/cuda/ptx/dependent_launch.cuh"
#include "kernels/cuda/runtime/launch.h"

namespace fox::cuda {
namespace {

constexpr int kTakeThreads = 1024;
constexpr int kCopyThreads = 256;
constexpr int kCopyWarps = kCopyThreads / kWarp;
// Enough blocks to fill the memory's bandwidth: an H200 transfers 4.8 TB/s, some 5 MB in a latency
// of a microsecond, and a block has up to 32 KB in flight.
constexpr int kMaxCopyBlocks = 264;
constexpr int kInFlight = 8;  // 16-byte words of a thread

// Word `index` of the thread's share and the following ones: `count` words of 16 or 4 bytes,
// distributed one by one over `threads`.
template <typename Word>
__device__ void CopyWords(const std::byte* from, std::byte* to, int64_t count, int64_t index,
                          int64_t threads) {
  const Word* source = reinterpret_cast<const Word*>(from);
  Word* out = reinterpret_cast<Word*>(to);
  for (; index + (kInFlight - 1) * threads < count; index += kInFlight * threads) {
    Word words[kInFlight];
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) words[i] = source[index + i * threads];
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) out[index + i * threads] = words[i];
  }
  for (; index < count; index += threads) out[index] = source[index];
}

// Both ends are aligned as `bytes` is, at most to 16; `bytes` is a multiple of 4.
__device__ void CopyBytes(const std::byte* from, std::byte* to, int64_t bytes, int64_t index,
                          int64_t threads) {
  if (bytes % sizeof(uint4) == 0) {
    CopyWords<uint4>(from, to, bytes / static_cast<int64_t>(sizeof(uint4)), index, threads);
  } else {
    CopyWords<uint32_t>(from, to, bytes / static_cast<int64_t>(sizeof(uint32_t)), index, threads);
  }
}

template <bool kOut>
__device__ void CopyArray(const SlotImageLayout::Array& array, int64_t at, std::byte* range,
                          int64_t index, int64_t threads) {
  std::byte* cache = array.data + at * array.bytes;
  range += array.offset;
  CopyBytes(kOut ? cache : range, kOut ? range : cache, array.bytes, index, threads);
}

// Live pages of the slot's lists, kThreads lists at a time: the thread's list is first + its index.
// before[i]: pages before list first + i, including all earlier lists' pages (`carry`). Begins and
// ends with a barrier; returns the carry of the next lists.
template <int kThreads>
__device__ int64_t CountPages(const int32_t* first_live, int end, int64_t first, int64_t lists,
                              int64_t carry, int64_t* before) {
  __shared__ int64_t warp_sums[kThreads / kWarp];
  const int64_t i = first + threadIdx.x;
  const int64_t live = i < lists ? max(end - first_live[i], 0) : 0;
  int64_t total;
  const int64_t sum = InclusiveScan<kThreads>(live, warp_sums, total);
  before[threadIdx.x] = carry + sum - live;
  __syncthreads();
  return carry + total;
}

// The list, as an index into `before`, that page k of the slot belongs to.
template <int kThreads>
__device__ __forceinline__ int ListOfPage(const int64_t* before, int64_t k) {
  return UpperBoundIndex(k, kThreads, [&](int i) { return before[i]; });
}

// State and pages of the slot, a warp a page.
template <bool kOut>
__global__ void __launch_bounds__(kCopyThreads)
    CopySlotKernel(const int slot, std::byte* range, const int64_t most_pages,
                   const __grid_constant__ SlotImageLayout layout, const PagedKv kv) {
  __shared__ int64_t before[kCopyThreads];
  TriggerDependents();
  WaitOnDependencies();
  const int64_t length = kv.length[slot];
  // If LoadSlot found a fault, the slot is empty.
  if (!kOut && length == 0) return;
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * kCopyThreads + threadIdx.x;
  for (int i = kOut ? 0 : SlotImageLayout::kHeader; i < layout.num_state; ++i) {
    CopyArray<kOut>(layout.state[i], slot, range, thread,
                    static_cast<int64_t>(gridDim.x) * kCopyThreads);
  }
  const int end = PagesFor(length);
  const int64_t lists = kv.shape.lists_per_slot(), first_list = kv.ListIndex(slot, 0, 0);
  const int64_t warps = static_cast<int64_t>(gridDim.x) * kCopyWarps;
  int64_t k = static_cast<int64_t>(blockIdx.x) * kCopyWarps + Warp(), counted = 0;
  for (int64_t first = 0; first < lists; first += kCopyThreads) {
    counted =
        CountPages<kCopyThreads>(kv.first_live + first_list, end, first, lists, counted, before);
    for (; k < min(counted, most_pages); k += warps) {
      const int i = ListOfPage<kCopyThreads>(before, k);
      const int64_t list = first_list + first + i;
      const int32_t page = kv.Table(list)[kv.first_live[list] + k - before[i]];
      if (!Exists(kv, page)) {
        Report(kv, PoolFault::kOverfilled);
        continue;
      }
      std::byte* in_range = range + layout.state_bytes + k * layout.page_bytes;
#pragma unroll 1
      for (const SlotImageLayout::Array& array : layout.page) {
        CopyArray<kOut>(array, page, in_range, Lane(), kWarp);
      }
    }
  }
  if (counted > most_pages && thread == 0) Report(kv, PoolFault::kImageOverflow);
}

// Length, first live pages, and pages from the pool for all live ones. One block. After a fault the
// slot is empty.
__global__ void __launch_bounds__(kTakeThreads)
    TakeSlotKernel(const int slot, const std::byte* range, const int64_t most_pages,
                   const __grid_constant__ SlotImageLayout layout, const PagedKv kv) {
  __shared__ int64_t before[kTakeThreads];
  TriggerDependents();
  WaitOnDependencies();
  const auto* lengths = reinterpret_cast<const int64_t*>(range + layout.state[0].offset);
  const auto* first_live = reinterpret_cast<const int32_t*>(range + layout.state[1].offset);
  const int64_t length = *lengths, lists = kv.shape.lists_per_slot();
  if (length < 0 || length > static_cast<int64_t>(kv.shape.max_pages) * kPageTokens) {
    if (threadIdx.x == 0) Report(kv, PoolFault::kTableEnd);
    return;
  }
  const int end = PagesFor(length);
  const int64_t first_list = kv.ListIndex(slot, 0, 0);
  const int32_t free_count = FreePages(kv);
  int64_t total = 0;
  for (int64_t first = 0; first < lists; first += kTakeThreads) {
    total = CountPages<kTakeThreads>(first_live, end, first, lists, total, before);
  }
  if (total > most_pages || total > free_count) {
    if (threadIdx.x != 0) return;
    Report(kv, total > most_pages ? PoolFault::kImageOverflow : PoolFault::kOverdrawn);
    return;
  }
  int64_t counted = 0;
  for (int64_t first = 0; first < lists; first += kTakeThreads) {
    const int64_t begin = counted;
    counted = CountPages<kTakeThreads>(first_live, end, first, lists, counted, before);
    for (int64_t k = begin + threadIdx.x; k < counted; k += kTakeThreads) {
      const int i = ListOfPage<kTakeThreads>(before, k);
      kv.Table(first_list + first + i)[first_live[first + i] + k - before[i]] =
          TakePage(kv, slot, free_count - 1 - k);
    }
    const int64_t i = first + threadIdx.x;
    if (i < lists) kv.first_live[first_list + i] = first_live[i];
  }
  if (threadIdx.x != 0) return;
  kv.length[slot] = length;
  kv.sole_pages[slot] += static_cast<int32_t>(total);
  *kv.free_count = free_count - static_cast<int32_t>(total);
}

// As if each list had all its pages, because only the device knows their number.
unsigned CopyBlocks(const PagedKv& kv) {
  return BlocksFor(kv.shape.lists_per_slot() * kv.shape.max_pages, kCopyWarps, kMaxCopyBlocks);
}

}  // namespace

cudaError_t SaveSlot(int32_t slot, const SlotImage& to, const PagedKv& kv, cudaStream_t stream) {
  return Launch(CopySlotKernel<true>, CopyBlocks(kv), kCopyThreads, 0, stream,
                static_cast<int>(slot), to.data, to.most_pages, SlotImageLayout(kv), kv);
}

cudaError_t LoadSlot(const SlotImage& from, int32_t slot, const PagedKv& kv, cudaStream_t stream) {
  const SlotImageLayout layout(kv);
  if (const cudaError_t error = CheckFreePages(kv, stream)) return error;
  const cudaError_t taken = Launch(TakeSlotKernel, 1, kTakeThreads, 0, stream,
                                   static_cast<int>(slot), from.data, from.most_pages, layout, kv);
  if (taken != cudaSuccess) return taken;
  return Launch(CopySlotKernel<false>, CopyBlocks(kv), kCopyThreads, 0, stream,
                static_cast<int>(slot), from.data, from.most_pages, layout, kv);
}

}  // namespace fox::cuda
