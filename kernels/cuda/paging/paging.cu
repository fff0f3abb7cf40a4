// Takes pages, plans a step and gives pages back. Pages are taken at places known from a prefix sum
// over the sequences, so the same state gives the same pages; they are given back in any order,
// for nothing depends on which free page a list gets.
#include <algorithm>

#include "kernels/acp.h"
#include "kernels/core/check.h"
#include "kernels/cuda/paging/paging.h"
#include "kernels/cuda/primitives/kv_index.cuh"
#include "kernels/cuda/runtime/launch.h"
#include "kernels/cuda/supports.h"

namespace fox::cuda {
namespace {

constexpr int kBeginStepThreads = 256;
constexpr int kMaxBeginStepBlocks = 264;
constexpr int kSplitThreads = 1024;
constexpr int kPairsPerThread = 8;
constexpr int kEvictThreads = 128;
constexpr int kEvictWarps = kEvictThreads / kWarp;
constexpr int kMaxEvictBlocks = 2112;
constexpr int kReleaseThreads = 128;
constexpr int kMaxReleaseBlocks = 64;

// A sequence's new pages per list, row blocks and tiles, side by side in one word so that one scan
// adds up all three.
constexpr int kFieldBits = 21;
constexpr uint64_t kFieldMask = (uint64_t{1} << kFieldBits) - 1;
static_assert(kMaxRows <= int64_t{1} << (kFieldBits - 1));
enum Field : int { kNewPages = 0, kBlocks = kFieldBits, kTiles = 2 * kFieldBits };

__device__ __forceinline__ int64_t UnpackCount(uint64_t counts, Field field) {
  return static_cast<int64_t>((counts >> field) & kFieldMask);
}

__device__ __forceinline__ uint64_t CountsOf(const SequenceRows& rows) {
  const int pages = PagesOf(rows.position + rows.count) - PagesOf(rows.position);
  const int tiles = rows.count > 1 ? NumSpans(rows, kTileRows) : 0;
  return static_cast<uint64_t>(pages) << kNewPages |
         static_cast<uint64_t>(NumSpans(rows, kPageTokens)) << kBlocks |
         static_cast<uint64_t>(tiles) << kTiles;
}

// before[s] = counts of the sequences before s, for s <= num_seqs. Ends with a barrier.
__device__ void PrefixCounts(const BatchView& batch, uint64_t* before) {
  __shared__ uint64_t warp_sums[kBeginStepThreads / kWarp];
  uint64_t carry = 0;
  for (int base = 0; base < batch.num_seqs; base += kBeginStepThreads) {
    const int seq = base + static_cast<int>(threadIdx.x);
    const uint64_t counts = seq < batch.num_seqs ? CountsOf(RowsOf(batch, seq)) : 0;
    uint64_t total;
    const uint64_t sum = InclusiveScan<kBeginStepThreads>(counts, warp_sums, total);
    if (seq < batch.num_seqs) before[seq + 1] = carry + sum;
    carry += total;
  }
  if (threadIdx.x == 0) before[0] = 0;
  __syncthreads();
}

// Piece i of a sequence's rows, cut at multiples of `unit`.
__device__ RowBlock Piece(const BatchView& batch, int seq, int64_t i, int unit) {
  const SequenceRows rows = RowsOf(batch, seq);
  const int64_t begin = i == 0 ? rows.position : (rows.position / unit + i) * unit;
  const int64_t limit = (begin / unit + 1) * unit, end = rows.position + rows.count;
  RowBlock piece;
  piece.seq = seq;
  piece.slot = rows.slot;
  piece.first_row = static_cast<int32_t>(rows.first_row + begin - rows.position);
  piece.count = static_cast<int32_t>((limit < end ? limit : end) - begin);
  piece.position = static_cast<int32_t>(begin);
  return piece;
}

__device__ void WritePieces(const BatchView& batch, const uint64_t* before, Field field, int unit,
                            RowBlock* out) {
  const int64_t total = UnpackCount(before[batch.num_seqs], field);
  const auto begin = [&](int s) { return UnpackCount(before[s], field); };
  for (int64_t k = blockIdx.x * kBeginStepThreads + threadIdx.x; k < total;
       k += gridDim.x * kBeginStepThreads) {
    const int seq = UpperBoundIndex(k, batch.num_seqs, begin);
    out[k] = Piece(batch, seq, k - begin(seq), unit);
  }
}

// The pool's checks, in release builds too: a broken promise is reported with the step's results
// and touches no memory outside the pool.
__device__ void Report(const PagedKv& kv, PoolFault fault) {
  atomicCAS(reinterpret_cast<int*>(kv.pool_fault), 0, static_cast<int>(fault));
}

__device__ __forceinline__ bool Exists(const PagedKv& kv, int32_t page) {
  return page >= 0 && page < kv.shape.num_pages;
}

__device__ __forceinline__ int32_t FreePages(const PagedKv& kv) {
  return min(max(*kv.free_count, 0), kv.shape.num_pages);
}

// Keys, then values, of a page as words of 16 bytes.
__device__ uint4* PageWords(const PagedKv& kv, int32_t page, int half, int* count) {
  *count = kPageTokens * kv.shape.head_dim / 8;  // bf16
  return static_cast<uint4*>(half == 0 ? kv.keys : kv.values) + static_cast<int64_t>(page) * *count;
}

// The warp fills the first `count` lanes' pages with NaN.
__device__ void PoisonPages(const PagedKv& kv, int32_t page, int count) {
  for (int i = 0; i < 2 * count; ++i) {
    const int32_t to = __shfl_sync(kAllLanes, page, i / 2);
    if (!Exists(kv, to)) continue;
    int words;
    uint4* const at = PageWords(kv, to, i % 2, &words);
    for (int w = static_cast<int>(threadIdx.x) % kWarp; w < words; w += kWarp) {
      at[w] = {~0u, ~0u, ~0u, ~0u};
    }
  }
}

// A page from the free stack; one that may be used even if it is wrong.
__device__ int32_t CheckedPage(const PagedKv& kv, int32_t page) {
  if (!Exists(kv, page)) {
    Report(kv, PoolFault::kOverfilled);
    return 0;
  }
  if (!kv.shape.poison_free_pages) return page;
  uint32_t all = ~0u;
  for (int half = 0; half < 2; ++half) {
    int words;
    const uint4* const at = PageWords(kv, page, half, &words);
    for (int w = 0; w < words; ++w) all &= at[w].x & at[w].y & at[w].z & at[w].w;
  }
  if (all != ~0u) Report(kv, PoolFault::kWrittenWhileFree);
  return page;
}

// Page k of all that are needed is the k-th from the top of the free stack.
__device__ void PopFreePages(const BatchView& batch, const PagedKv& kv, const uint64_t* before) {
  const int64_t lists = static_cast<int64_t>(kv.shape.layers) * kv.shape.kv_heads;
  const int64_t total = UnpackCount(before[batch.num_seqs], kNewPages) * lists;
  if (total == 0) return;
  const int64_t free_count = FreePages(kv);
  if (total > free_count) Report(kv, PoolFault::kOverdrawn);  // against the scheduler's promise
  const auto begin = [&](int s) { return UnpackCount(before[s], kNewPages); };
  for (int64_t k = blockIdx.x * kBeginStepThreads + threadIdx.x; k < total;
       k += gridDim.x * kBeginStepThreads) {
    const int seq = UpperBoundIndex(k / lists, batch.num_seqs, begin);
    const int64_t of_seq = k - begin(seq) * lists, per_list = begin(seq + 1) - begin(seq);
    const int64_t list = ListIndex(kv, batch.slot[seq], 0, 0) + of_seq / per_list;
    const int64_t p = PagesOf(batch.position[seq]) + of_seq % per_list;
    if (p >= kv.shape.max_pages) {
      Report(kv, PoolFault::kTableEnd);
      continue;
    }
    // Where none is left, some page stands in, so that it may be read and written.
    Table(kv, list)[p] = k < free_count ? CheckedPage(kv, kv.free_stack[free_count - 1 - k]) : 0;
  }
}

__global__ void __launch_bounds__(kBeginStepThreads)
    BeginStepKernel(const BatchView batch, const PagedKv kv, const StepSchedule schedule) {
  extern __shared__ uint64_t before[];  // [num_seqs + 1]
  TriggerDependents();
  WaitOnDependencies();
  PrefixCounts(batch, before);
  PopFreePages(batch, kv, before);
  WritePieces(batch, before, kBlocks, kPageTokens, schedule.blocks);
  WritePieces(batch, before, kTiles, kTileRows, schedule.tiles);
  if (blockIdx.x != 0) return;
  for (int seq = static_cast<int>(threadIdx.x); seq < batch.num_seqs; seq += kBeginStepThreads) {
    const SequenceRows rows = RowsOf(batch, seq);
    if (rows.slot >= 0) kv.length[rows.slot] = rows.position + rows.count;
  }
  if (threadIdx.x == 0) {
    *schedule.num_blocks = static_cast<int32_t>(UnpackCount(before[batch.num_seqs], kBlocks));
    *schedule.num_tiles = static_cast<int32_t>(UnpackCount(before[batch.num_seqs], kTiles));
  }
}

// Of one pair's window.
__device__ __forceinline__ int ItemsOf(const BatchView& batch, const PagedKv& kv,
                                       const StepSchedule& schedule, int layer, int seq_head) {
  const int seq = seq_head / kv.shape.q_heads, head = seq_head % kv.shape.q_heads;
  const SequenceRows rows = RowsOf(batch, seq);
  if (rows.count != 1) return 0;
  const int first = schedule.first_visible_page != nullptr
                        ? schedule.first_visible_page[seq_head]
                        : kv.first_live[ListIndex(kv, rows.slot, layer, head / GroupOf(kv))];
  const int last = static_cast<int>(rows.position / kPageTokens);
  return NumSplits(first, last);
}

// Ends the taking of pages: what BeginStepKernel took leaves the stack. One thread block calls.
__device__ void CommitPops(const BatchView& batch, const PagedKv& kv, uint64_t* warp_sums) {
  uint64_t taken = 0, total;
  for (int seq = static_cast<int>(threadIdx.x); seq < batch.num_seqs; seq += kSplitThreads) {
    taken += static_cast<uint64_t>(UnpackCount(CountsOf(RowsOf(batch, seq)), kNewPages));
  }
  InclusiveScan<kSplitThreads>(taken, warp_sums, total);
  if (threadIdx.x == 0 && total > 0) {
    const int64_t lists = static_cast<int64_t>(kv.shape.layers) * kv.shape.kv_heads;
    const int64_t free_count = FreePages(kv),
                  left = free_count - static_cast<int64_t>(total) * lists;
    *kv.free_count = static_cast<int32_t>(left > 0 ? left : 0);
  }
}

// One thread block a layer, from `first_layer` on.
__global__ void __launch_bounds__(kSplitThreads)
    PlanSplitsKernel(const BatchView batch, const PagedKv kv, const StepSchedule schedule,
                     int first_layer, bool ends_taking) {
  __shared__ int warp_sums[kSplitThreads / kWarp];
  __shared__ uint64_t taken_sums[kSplitThreads / kWarp];
  TriggerDependents();
  WaitOnDependencies();
  const int layer = first_layer + static_cast<int>(blockIdx.x);
  const int seq_heads = batch.num_seqs * kv.shape.q_heads;
  int32_t* begin =
      schedule.split_begin + static_cast<int64_t>(layer) * (schedule.max_seq_heads + 1);
  int carry = 0;
  for (int base = 0; base < seq_heads; base += kSplitThreads * kPairsPerThread) {
    const int first = base + static_cast<int>(threadIdx.x) * kPairsPerThread;
    int count[kPairsPerThread], sum = 0, total;
#pragma unroll
    for (int i = 0; i < kPairsPerThread; ++i) {
      count[i] = first + i < seq_heads ? ItemsOf(batch, kv, schedule, layer, first + i) : 0;
      sum += count[i];
    }
    int before = carry + InclusiveScan<kSplitThreads>(sum, warp_sums, total) - sum;
#pragma unroll
    for (int i = 0; i < kPairsPerThread; ++i) {
      if (first + i < seq_heads) begin[first + i] = before;
      before += count[i];
    }
    carry += total;
  }
  if (threadIdx.x == 0) begin[seq_heads] = carry;
  if (ends_taking && blockIdx.x == 0) CommitPops(batch, kv, taken_sums);
}

// Puts the first `count` lanes' pages on the free stack; the warp calls together.
__device__ void PushFreePages(const PagedKv& kv, int32_t page, int count) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  if (count <= 0) return;
  int base = 0;
  if (lane == 0) base = atomicAdd(kv.free_count, count);
  base = __shfl_sync(kAllLanes, base, 0);
  if (kv.shape.poison_free_pages) PoisonPages(kv, page, count);
  if (lane >= count) return;
  if (base >= 0 && base + lane < kv.shape.num_pages && Exists(kv, page)) {
    kv.free_stack[base + lane] = page;
  } else {
    Report(kv, PoolFault::kOverfilled);
  }
}

// t of a page end, for each query head of the group (the rule of kernels/acp.h).
__device__ void LoadThresholds(const EvictParams& params, const PagedKv& kv, int layer, int kv_head,
                               int32_t page, double* out) {
  const int group = GroupOf(kv);
  const float* local = static_cast<const float*>(kv.log_f_offset);
  for (int g = 0; g < group; ++g) {
    const int64_t summary = static_cast<int64_t>(page) * group + g;
    const int64_t head = static_cast<int64_t>(layer) * kv.shape.q_heads + kv_head * group + g;
    const double c_end = kv.page_cum_log_f[summary] +
                         static_cast<double>(local[summary * kPageTokens + kPageTokens - 1]);
    if (params.acp == AcpMode::kCertified) {
      const double log_denominator_bound = kv.log_denominator_bound[summary],
                   by_self = c_end + params.self_logit_bound[head];
      out[g] = by_self < log_denominator_bound ? by_self : log_denominator_bound;
    } else {
      out[g] = c_end + 2 * params.max_logit_bound[head];
    }
  }
}

// The evicted-mass bound of the rule, the largest over the group; a NaN wins.
__device__ __forceinline__ double EvictedMassBound(const double* log_mass_bound,
                                                   const double* threshold, int group) {
  double worst = -CUDART_INF;
  for (int g = 0; g < group; ++g) {
    const double side = log_mass_bound[g] + threshold[g];
    if (!(side <= worst)) worst = side;
    if (worst != worst) break;
  }
  return worst;
}

// The pages that the walk over a list's page ends looks at next: lane i holds page begin + i and
// its scores.
struct EvictWindow {
  int begin;
  int32_t page;
  double* log_mass_bound;  // [group], this lane's, in shared memory
};

__device__ EvictWindow LoadWindow(const PagedKv& kv, const int32_t* table, int begin, int end,
                                  double* log_mass_bound) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, group = GroupOf(kv);
  EvictWindow window{begin, -1, log_mass_bound};
  if (begin + lane < end) {
    window.page = table[begin + lane];
    for (int g = 0; g < group; ++g) {
      log_mass_bound[g] = kv.log_mass_bound[static_cast<int64_t>(window.page) * group + g];
    }
  }
  return window;
}

// One warp, one list: what the ends of pages [page_begin, page_end) license, each after the other.
// 32 pages are tested at once. `shared` [2, 32, group]. Returns how many pages were freed.
__device__ int EvictList(const EvictParams& params, const PagedKv& kv, int slot, int layer,
                         int kv_head, int page_begin, int page_end, double log_eps, double* shared,
                         double* max_log_evicted_mass) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, group = GroupOf(kv);
  const int64_t list = ListIndex(kv, slot, layer, kv_head);
  const int32_t* table = Table(kv, list);
  const int start = kv.first_live[list];
  int first = start;
  double worst = -CUDART_INF;
  double* threshold = shared + kWarp * group;
  EvictWindow window = LoadWindow(kv, table, first, page_end, shared + lane * group);
  for (int ends = page_begin; ends < page_end; ends += kWarp) {
    __syncwarp();
    if (ends + lane < page_end) {
      LoadThresholds(params, kv, layer, kv_head, table[ends + lane], threshold + lane * group);
    }
    __syncwarp();
    const int count = min(kWarp, page_end - ends);
    for (int i = 0; i < count; ++i) {
      while (first < ends + i) {
        const int candidate = window.begin + lane;
        double side = -CUDART_INF;
        bool drop = candidate < first;
        if (!drop && candidate < ends + i) {
          side = EvictedMassBound(window.log_mass_bound, threshold + i * group, group);
          drop = side <= log_eps - kAcpSlack;
        }
        const unsigned kept = ~__ballot_sync(kAllLanes, drop);
        const int dropped = kept == 0 ? kWarp : __ffs(static_cast<int>(kept)) - 1;
        if (candidate >= first && lane < dropped && side > worst) worst = side;
        first = window.begin + dropped;
        if (dropped < kWarp) break;
        PushFreePages(kv, window.page, kWarp);
        window = LoadWindow(kv, table, first, page_end, shared + lane * group);
      }
    }
  }
  if (first == start) return 0;
  PushFreePages(kv, window.page, first - window.begin);
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    worst = fmax(worst, __shfl_xor_sync(kAllLanes, worst, offset));
  }
  if (lane == 0) {
    kv.first_live[list] = first;
    if (kv.max_log_evicted_mass[list] < worst) kv.max_log_evicted_mass[list] = worst;
    // All are negative, and the bits of negative numbers fall as the numbers rise.
    if (max_log_evicted_mass != nullptr) {
      atomicMin(reinterpret_cast<unsigned long long*>(max_log_evicted_mass),
                static_cast<unsigned long long>(__double_as_longlong(worst)));
    }
  }
  return first - start;
}

__device__ __forceinline__ bool HasPageEnd(const BatchView& batch, int seq) {
  const SequenceRows rows = RowsOf(batch, seq);
  return rows.count > 0 && isfinite(batch.log_tolerance[seq]) &&
         rows.position / kPageTokens < (rows.position + rows.count) / kPageTokens;
}

// A warp a list, over the lists of those sequences that reached a page end.
__global__ void __launch_bounds__(kEvictThreads)
    EvictKernel(const BatchView batch, const EvictParams params, const PagedKv kv) {
  extern __shared__ double windows[];  // [kEvictWarps, 2, 32, group], then active [num_seqs]
  __shared__ int warp_sums[kEvictWarps];
  TriggerDependents();
  WaitOnDependencies();
  const int group = GroupOf(kv), warp = static_cast<int>(threadIdx.x) / kWarp;
  int32_t* active = reinterpret_cast<int32_t*>(windows + kEvictWarps * 2 * kWarp * group);
  int num_active = 0;
  for (int base = 0; base < batch.num_seqs; base += kEvictThreads) {
    const int seq = base + static_cast<int>(threadIdx.x);
    const int here = seq < batch.num_seqs && HasPageEnd(batch, seq) ? 1 : 0;
    int total;
    const int sum = InclusiveScan<kEvictThreads>(here, warp_sums, total);
    if (here != 0) active[num_active + sum - 1] = seq;
    num_active += total;
  }
  if (num_active == 0) return;
  __syncthreads();
  const int64_t lists = static_cast<int64_t>(kv.shape.layers) * kv.shape.kv_heads;
  for (int64_t task = static_cast<int64_t>(blockIdx.x) * kEvictWarps + warp;
       task < num_active * lists; task += static_cast<int64_t>(gridDim.x) * kEvictWarps) {
    const int seq = active[task / lists], list = static_cast<int>(task % lists);
    const SequenceRows rows = RowsOf(batch, seq);
    const int freed = EvictList(
        params, kv, rows.slot, list / kv.shape.kv_heads, list % kv.shape.kv_heads,
        static_cast<int>(rows.position / kPageTokens),
        static_cast<int>((rows.position + rows.count) / kPageTokens), batch.log_tolerance[seq],
        windows + warp * 2 * kWarp * group,
        params.max_log_evicted_mass == nullptr ? nullptr : params.max_log_evicted_mass + seq);
    if (freed > 0 && params.pages_evicted != nullptr && threadIdx.x % kWarp == 0) {
      atomicAdd(reinterpret_cast<unsigned long long*>(params.pages_evicted + seq),
                static_cast<unsigned long long>(freed));
    }
  }
}

struct ReleasedSlots {
  int32_t slot[kMaxReleased];
};

__device__ void Fill(double* out, int64_t count, double value) {
  for (int64_t i = blockIdx.x * kReleaseThreads + threadIdx.x; i < count;
       i += gridDim.x * kReleaseThreads) {
    out[i] = value;
  }
}

// All but the length, which every list has to read first. blockIdx.y: which slot.
__global__ void __launch_bounds__(kReleaseThreads)
    ReleaseKernel(const ReleasedSlots released, const PagedKv kv) {
  TriggerDependents();
  WaitOnDependencies();
  constexpr int kWarps = kReleaseThreads / kWarp;
  const int slot = released.slot[blockIdx.y];
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t lists = static_cast<int64_t>(kv.shape.layers) * kv.shape.kv_heads;
  const int end = PagesOf(kv.length[slot]);
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp; i < lists;
       i += static_cast<int64_t>(gridDim.x) * kWarps) {
    const int64_t list = ListIndex(kv, slot, 0, 0) + i;
    const int32_t* table = Table(kv, list);
    for (int p = kv.first_live[list]; p < end; p += kWarp) {
      const int count = min(kWarp, end - p);
      PushFreePages(kv, lane < count ? table[p + lane] : -1, count);
    }
    __syncwarp();
    if (lane == 0) {
      kv.first_live[list] = 0;
      kv.max_log_evicted_mass[list] = -CUDART_INF;
    }
  }
  const int64_t state = HeadIndex(kv, slot, 0, 0);
  const int64_t heads = static_cast<int64_t>(kv.shape.layers) * kv.shape.q_heads;
  Fill(kv.cum_log_f + state, heads, 0);
  Fill(kv.log_mass + state, heads, -CUDART_INF);
  Fill(kv.decay_sum + state, heads, 0);
  Fill(kv.key_sum + state * kv.shape.head_dim, heads * kv.shape.head_dim, 0);
}

__global__ void ClearLengthsKernel(const ReleasedSlots released, int count, const PagedKv kv) {
  TriggerDependents();
  WaitOnDependencies();
  if (static_cast<int>(threadIdx.x) < count) kv.length[released.slot[threadIdx.x]] = 0;
}

unsigned BlocksFor(int64_t schedule, int64_t per_block, int64_t most) {
  return static_cast<unsigned>(
      std::clamp<int64_t>((schedule + per_block - 1) / per_block, 1, most));
}

}  // namespace

cudaError_t BeginStep(const BatchView& batch, const PagedKv& kv, const StepSchedule& schedule,
                      cudaStream_t stream) {
  if (batch.num_seqs == 0) return cudaSuccess;
  FOX_CHECK(batch.num_seqs <= kMaxSeqs && batch.num_rows <= kMaxRows);
  FOX_CHECK(MaxRowBlocks(batch.num_rows, batch.num_seqs) <= schedule.max_blocks);
  FOX_CHECK(static_cast<int64_t>(batch.num_seqs) * kv.shape.q_heads <= schedule.max_seq_heads);
  const int64_t most_pages =
      (batch.num_rows / kPageTokens + batch.num_seqs) * kv.shape.lists_per_slot();
  const size_t shared = static_cast<size_t>(batch.num_seqs + 1) * sizeof(uint64_t);
  const cudaError_t grown =
      Launch(BeginStepKernel, BlocksFor(most_pages, kBeginStepThreads, kMaxBeginStepBlocks),
             kBeginStepThreads, shared, stream, batch, kv, schedule);
  if (grown != cudaSuccess) return grown;
  return Launch(PlanSplitsKernel, static_cast<unsigned>(kv.shape.layers), kSplitThreads, 0, stream,
                batch, kv, schedule, 0, true);
}

cudaError_t PlanSplits(const BatchView& batch, const PagedKv& kv, const StepSchedule& schedule,
                       int layer, cudaStream_t stream) {
  return Launch(PlanSplitsKernel, 1, kSplitThreads,
                SmemConfig(0, batch.num_rows <= kSmallBatchRows), stream, batch, kv, schedule,
                layer, false);
}

cudaError_t Evict(const BatchView& batch, const EvictParams& params, const PagedKv& kv,
                  cudaStream_t stream) {
  if (params.acp == AcpMode::kOff || batch.num_seqs == 0) return cudaSuccess;
  const int group = kv.shape.group();
  FOX_CHECK(batch.num_seqs <= kMaxSeqs && group <= kMaxGroup);
  const int64_t lists = batch.num_seqs * kv.shape.lists_per_slot();
  const size_t shared = static_cast<size_t>(kEvictWarps * 2 * kWarp * group) * sizeof(double) +
                        static_cast<size_t>(batch.num_seqs) * sizeof(int32_t);
  static_assert(kEvictWarps * 2 * kWarp * kMaxGroup * 8 + kMaxSeqs * 4 <= 49152 - 64);
  return Launch(EvictKernel, BlocksFor(lists, kEvictWarps, kMaxEvictBlocks), kEvictThreads, shared,
                stream, batch, params, kv);
}

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
  return Launch(ClearLengthsKernel, 1, kMaxReleased, 0, stream, released, count, kv);
}

}  // namespace fox::cuda
