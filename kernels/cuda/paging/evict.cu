// Evict: accumulates the pages that decode rows have filled; and frees, at each page end among the
// step's rows, the leading pages that no later row needs. The order in which pages are freed does
// not matter, because nothing depends on which free page a list gets.
//
// Page ends are tested in order, so which pages are live after a page end does not depend on how
// the rows were divided into steps. When pages are freed does: at the end of a step. No tile may
// see the difference, so the pages evicted at a page end are dropped by every later tile's own
// boundary (prune_boundary.cu), to the bit: E and H are the same numbers and t falls
// (RisingLogMassBound, H a minimum). Except the gates: a float32 offset may lie one rounding
// below the float64 sum that starts the next page. LoadThresholds pays kSumRounding
// of c for that, thousands of such roundings.
#include <cstddef>

#include "kernels/core/check.h"
#include "kernels/cuda/append/page_end.cuh"
#include "kernels/cuda/paging/page_pool.cuh"
#include "kernels/cuda/paging/paging.h"
#include "kernels/cuda/primitives/kv_index.cuh"
#include "kernels/cuda/ptx/dependent_launch.cuh"
#include "kernels/cuda/runtime/head_dim.h"
#include "kernels/cuda/runtime/launch.h"
#include "kernels/cuda/runtime/supports.h"
#include "kernels/paging/acp.h"

namespace fox::cuda {
namespace {

constexpr int kEvictThreads = 128;
constexpr int kEvictWarps = kEvictThreads / kWarp;
constexpr int kEvictBlocksPerSm = 4;
constexpr int kMaxEvictBlocks = 132 * kEvictBlocksPerSm;  // an H200's, at kEvictBlocksPerSm

// t of a page end, for each query head of the group: at least the t of any later row.
__device__ void LoadThresholds(const EvictParams& params, const PagedKv& kv, int layer, int kv_head,
                               int32_t page, double* out) {
  const int group = kv.shape.group();
  const float* local = static_cast<const float*>(kv.log_f_offset);
  for (int g = 0; g < group; ++g) {
    const int64_t summary = static_cast<int64_t>(page) * group + g;
    const int64_t head = static_cast<int64_t>(layer) * kv.shape.q_heads + kv_head * group + g;
    double c_end =
        UpperCumulativeGate(kv.page_cum_log_f[summary],
                            static_cast<double>(local[summary * kPageTokens + kPageTokens - 1]));
    c_end += kSumRounding * fabs(c_end);
    const double log_denominator_bound =
        params.acp == AcpMode::kCertified ? kv.log_denominator_bound[summary] : 0;
    out[g] = PageThreshold(params.acp, log_denominator_bound, c_end, params.self_logit_bound[head],
                           params.max_logit_bound[head]);
  }
}

// The evicted-mass bound of the rule, the largest over the group; a NaN wins.
__device__ __forceinline__ double EvictedMassBound(const double* log_mass_bound,
                                                   const double* threshold, int group) {
  double largest = kNoMass;
  for (int g = 0; g < group; ++g) {
    const double evicted_mass = log_mass_bound[g] + threshold[g];
    if (!(evicted_mass <= largest)) largest = evicted_mass;
    if (largest != largest) break;
  }
  return largest;
}

// The next pages that the loop over a list's page ends tests: lane i holds page begin + i and its
// bounds.
struct EvictWindow {
  int begin;
  int32_t page;
  double* log_mass_bound;  // [group], this lane's, in shared memory
};

__device__ EvictWindow LoadWindow(const PagedKv& kv, const int32_t* table, int begin, int end,
                                  double* log_mass_bound) {
  const int lane = Lane(), group = kv.shape.group();
  EvictWindow window{begin, -1, log_mass_bound};
  if (begin + lane < end) {
    window.page = table[begin + lane];
    for (int g = 0; g < group; ++g) {
      log_mass_bound[g] = kv.log_mass_bound[static_cast<int64_t>(window.page) * group + g];
    }
  }
  return window;
}

// Frees, by one warp for one list, the pages that may be dropped at the ends of pages [page_begin,
// page_end), in order. 32 pages are tested at once. `shared` [2, 32, group]. Returns the number of
// pages freed. `before`: evicted_before of the first page end and the lane's query head, or null;
// the next one's is `stride` numbers further.
__device__ int EvictList(const EvictParams& params, const PagedKv& kv, int slot, int layer,
                         int kv_head, int page_begin, int page_end, double log_eps, double* shared,
                         double* max_log_evicted_mass, double* before, int64_t stride) {
  const int lane = Lane(), group = kv.shape.group();
  const int64_t list = kv.ListIndex(slot, layer, kv_head);
  const int32_t* table = kv.Table(list);
  const int start = kv.first_live[list];
  int first = start;
  double largest = kNoMass;
  double* threshold = shared + kWarp * group;
  double evicted = lane < group ? kv.evicted_log_mass[list * group + lane] : 0;  // of head `lane`
  EvictWindow window = LoadWindow(kv, table, first, page_end, shared + lane * group);
  for (int ends = page_begin; ends < page_end; ends += kWarp) {
    __syncwarp();
    if (ends + lane < page_end) {
      LoadThresholds(params, kv, layer, kv_head, table[ends + lane], threshold + lane * group);
    }
    __syncwarp();
    const int count = min(kWarp, page_end - ends);
    for (int i = 0; i < count; ++i) {
      if (before != nullptr && lane < group) {
        *before = evicted;
        before += stride;
      }
      while (first < ends + i) {
        const int candidate = window.begin + lane;
        double evicted_mass = kNoMass;
        bool drop = candidate < first;
        if (!drop && candidate < ends + i) {
          evicted_mass = EvictedMassBound(window.log_mass_bound, threshold + i * group, group);
          drop = MayDrop(evicted_mass, 0, log_eps);
        }
        const unsigned kept = ~__ballot_sync(kAllLanes, drop);
        const int dropped = kept == 0 ? kWarp : __ffs(static_cast<int>(kept)) - 1;
        if (candidate >= first && lane < dropped && evicted_mass > largest) largest = evicted_mass;
        first = window.begin + dropped;
        __syncwarp();
        if (dropped > 0 && lane < group) {
          evicted = EvictedLogMass(
              params.acp, shared[(dropped - 1) * group + lane],
              params.max_logit_bound[(layer * kv.shape.kv_heads + kv_head) * group + lane]);
        }
        if (dropped < kWarp) break;
        __syncwarp();  // the bounds have been read
        DropPages(kv, slot, window.page, kWarp);
        window = LoadWindow(kv, table, first, page_end, shared + lane * group);
      }
    }
  }
  if (first == start) return 0;
  DropPages(kv, slot, window.page, first - window.begin);
  // E and H come of float32 sums here, for which the slack pays (acp.md 3): the certificate has it.
  largest = fmin(WarpMax(largest) + kAcpSlack, log_eps);
  if (lane < group) kv.evicted_log_mass[list * group + lane] = evicted;
  if (lane == 0) {
    kv.first_live[list] = first;
    if (kv.max_log_evicted_mass[list] < largest) kv.max_log_evicted_mass[list] = largest;
    // All are negative, and the bits of negative numbers fall as the numbers rise.
    if (max_log_evicted_mass != nullptr) {
      atomicMin(reinterpret_cast<unsigned long long*>(max_log_evicted_mass),
                static_cast<unsigned long long>(__double_as_longlong(largest)));
    }
  }
  return first - start;
}

__device__ __forceinline__ bool HasPageEnd(const BatchView& batch, int seq) {
  const SequenceRows rows = RowsOf(batch, seq);
  return rows.count > 0 && rows.position / kPageTokens < (rows.position + rows.count) / kPageTokens;
}

// A warp's shared memory: for the sums of a page, then for a list's windows [2, 32, group].
template <int kHeadDim>
__host__ __device__ constexpr size_t EvictWarpBytes(int group) {
  const size_t windows = sizeof(double) * 2 * kWarp * static_cast<size_t>(group);
  return windows > sizeof(PageSumsScratch<kHeadDim>) ? windows : sizeof(PageSumsScratch<kHeadDim>);
}

// One warp per list, over the lists of the sequences that reached a page end: which these are is
// known before the wait, and in most steps of few rows there are none. A page that a decode row has
// filled is accumulated first.
template <int kHeadDim, bool kGeneralBound, typename Part>
__global__ void __launch_bounds__(kEvictThreads, kGeneralBound ? 3 : kEvictBlocksPerSm)
    EvictKernel(const BatchView batch, const EvictParams params, const PagedKv kv,
                double* const evicted_before) {
  extern __shared__ __align__(
      16) double shared[];  // [kEvictWarps] EvictWarpBytes, then active [num_seqs]
  __shared__ int warp_sums[kEvictWarps];
  TriggerDependents();
  const int group = kv.shape.group(), warp = Warp();
  std::byte* const of_warps = reinterpret_cast<std::byte*>(shared);
  const size_t warp_bytes = EvictWarpBytes<kHeadDim>(group);
  int32_t* active = reinterpret_cast<int32_t*>(of_warps + kEvictWarps * warp_bytes);
  const int num_active = SelectSequences<kEvictThreads>(
      batch, warp_sums, active, [&](int seq) { return HasPageEnd(batch, seq); });
  WaitOnDependencies();
  if (num_active == 0) return;
  const int64_t lists = kv.shape.lists_per_slot();
  for (int64_t task = static_cast<int64_t>(blockIdx.x) * kEvictWarps + warp;
       task < num_active * lists; task += static_cast<int64_t>(gridDim.x) * kEvictWarps) {
    const int seq = active[task / lists], list = static_cast<int>(task % lists);
    const SequenceRows rows = RowsOf(batch, seq);
    void* const of_warp = of_warps + warp * warp_bytes;
    const int layer = list / kv.shape.kv_heads, kv_head = list % kv.shape.kv_heads;
    if (seq < batch.num_decodes && params.bounds != nullptr) {
      for (int g = 0; g < group; ++g) {
        __syncwarp();
        AccumulatePage<kHeadDim, kGeneralBound, Part>(
            params.bounds[layer], params.acp, kv,
            FilledPage(kv, rows.slot, layer, kv_head * group + g, rows.position),
            *static_cast<PageSumsScratch<kHeadDim>*>(of_warp));
      }
      __syncwarp();
    }
    if (!isfinite(batch.log_tolerance[seq])) continue;
    const int64_t heads = kv.shape.heads_per_slot();
    const int64_t first_end = rows.first_row + kPageTokens - 1 - rows.position % kPageTokens;
    double* const before = evicted_before == nullptr
                               ? nullptr
                               : evicted_before +
                                     StepSchedule::PageEndIndex(first_end, seq) * heads +
                                     list * group + Lane();
    const int freed = EvictList(
        params, kv, rows.slot, layer, kv_head, static_cast<int>(rows.position / kPageTokens),
        static_cast<int>((rows.position + rows.count) / kPageTokens), batch.log_tolerance[seq],
        static_cast<double*>(of_warp),
        params.max_log_evicted_mass == nullptr ? nullptr : params.max_log_evicted_mass + seq,
        before, heads);
    if (freed > 0 && params.pages_evicted != nullptr && threadIdx.x % kWarp == 0) {
      atomicAdd(reinterpret_cast<unsigned long long*>(params.pages_evicted + seq),
                static_cast<unsigned long long>(freed));
    }
  }
}

}  // namespace

cudaError_t Evict(const BatchView& batch, const EvictParams& params, const PagedKv& kv,
                  const StepSchedule& schedule, cudaStream_t stream) {
  if (params.acp == AcpMode::kOff || batch.num_seqs == 0) return cudaSuccess;
  const int group = kv.shape.group();
  FOX_CHECK(batch.num_seqs <= kMaxSeqs && group <= kMaxGroup);
  const int64_t lists = batch.num_seqs * kv.shape.lists_per_slot();
  const cudaError_t evicted = DispatchHeadDim(kv.shape.head_dim, [&]<int kHeadDim>() {
    return DispatchPart(kv.shape.dtype, [&]<typename Part>() {
      const auto kernel =
          params.diagonal ? EvictKernel<kHeadDim, false, Part> : EvictKernel<kHeadDim, true, Part>;
      const size_t bytes = kEvictWarps * EvictWarpBytes<kHeadDim>(group) +
                           static_cast<size_t>(batch.num_seqs) * sizeof(int32_t);
      static_assert(kEvictWarps * EvictWarpBytes<kHeadDim>(kMaxGroup) + kMaxSeqs * 4 <= 49152 - 64);
      return Launch(kernel, BlocksFor(lists, kEvictWarps, kMaxEvictBlocks), kEvictThreads,
                    SmemConfig(bytes, batch.num_rows <= kOverlapRows), stream, batch, params, kv,
                    schedule.evicted_before);
    });
  });
  return evicted != cudaSuccess ? evicted : PoisonFreePages(kv, stream);
}

}  // namespace fox::cuda
