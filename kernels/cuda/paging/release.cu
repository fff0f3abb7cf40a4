// Release: frees all pages of a slot and resets its state to a new sequence's.
#include <algorithm>

#include "kernels/core/check.h"
#include "kernels/cuda/paging/page_pool.cuh"
#include "kernels/cuda/paging/paging.h"
#include "kernels/cuda/primitives/kv_index.cuh"
#include "kernels/cuda/ptx/dependent_launch.cuh"
#include "kernels/cuda/runtime/launch.h"

namespace fox::cuda {
namespace {

constexpr int kReleaseThreads = 128;
constexpr int kMaxReleaseBlocks = 64;

struct ReleasedSlots {
  int32_t slot[kMaxReleased];
};

__device__ void Fill(double* out, int64_t count, double value) {
  for (int64_t i = blockIdx.x * kReleaseThreads + threadIdx.x; i < count;
       i += gridDim.x * kReleaseThreads) {
    out[i] = value;
  }
}

// Everything but the length, which every list has to read first. blockIdx.y: the slot.
__global__ void __launch_bounds__(kReleaseThreads)
    ReleaseKernel(const ReleasedSlots released, const PagedKv kv) {
  TriggerDependents();
  WaitOnDependencies();
  constexpr int kWarps = kReleaseThreads / kWarp;
  const int slot = released.slot[blockIdx.y];
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t lists = kv.shape.lists_per_slot();
  const int end = PagesFor(kv.length[slot]);
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp; i < lists;
       i += static_cast<int64_t>(gridDim.x) * kWarps) {
    const int64_t list = kv.ListIndex(slot, 0, 0) + i;
    const int32_t* table = kv.Table(list);
    for (int p = kv.first_live[list]; p < end; p += kWarp) {
      const int count = min(kWarp, end - p);
      DropPages(kv, slot, lane < count ? table[p + lane] : -1, count);
    }
    __syncwarp();
    if (lane == 0) {
      kv.first_live[list] = 0;
      kv.max_log_evicted_mass[list] = -CUDART_INF;
    }
  }
  const int64_t state = kv.HeadIndex(slot, 0, 0);
  const int64_t heads = kv.shape.heads_per_slot();
  Fill(kv.cum_log_f + kv.HeadIndex(kv.After(slot, 0), 0, 0), heads, 0);
  Fill(kv.evicted_log_mass + state, heads, -CUDART_INF);
  Fill(kv.log_mass + state, heads, -CUDART_INF);
  Fill(kv.decay_sum + state, heads, 0);
  Fill(kv.key_sum + state * kv.shape.head_dim, heads * kv.shape.head_dim, 0);
}

__global__ void ClearLengthsKernel(const ReleasedSlots released, int count, const PagedKv kv) {
  TriggerDependents();
  WaitOnDependencies();
  if (static_cast<int>(threadIdx.x) < count) kv.length[released.slot[threadIdx.x]] = 0;
}

}  // namespace

cudaError_t Release(const int32_t* host_slots, int count, const PagedKv& kv, cudaStream_t stream) {
  FOX_CHECK(count <= kMaxReleased);
  if (count == 0) return cudaSuccess;
  ReleasedSlots released{};
  std::copy_n(host_slots, count, released.slot);
  const unsigned blocks =
      BlocksFor(kv.shape.lists_per_slot(), kReleaseThreads / kWarp, kMaxReleaseBlocks);
  const cudaError_t freed = Launch(ReleaseKernel, dim3(blocks, static_cast<unsigned>(count)),
                                   kReleaseThreads, 0, stream, released, kv);
  if (freed != cudaSuccess) return freed;
  const cudaError_t cleared =
      Launch(ClearLengthsKernel, 1, kMaxReleased, 0, stream, released, count, kv);
  return cleared != cudaSuccess ? cleared : PoisonFreePages(kv, stream);
}

}  // namespace fox::cuda
