// BeginStep: allocates the step's pages and plans the step. A prefix sum over the sequences gives
// each page's place in the free stack, so equal states give equal pages.
#include <algorithm>

#include "kernels/core/check.h"
#include "kernels/cuda/paging/page_pool.cuh"
#include "kernels/cuda/paging/paging.h"
#include "kernels/cuda/primitives/kv_index.cuh"
#include "kernels/cuda/ptx/dependent_launch.cuh"
#include "kernels/cuda/runtime/launch.h"
#include "kernels/cuda/runtime/supports.h"

namespace fox::cuda {
namespace {

constexpr int kBeginStepThreads = 256;
constexpr int kMaxBeginStepBlocks = 264;
constexpr int kPlanThreads = 768;
// kPlanBlocks thread blocks of PlanSplitsKernel, about one an SM of Hopper, share the layers'
// plans, or as many as there are layers if layers are more: an SM's scattered loads and stores, one
// after the other, take most of a plan's time.
constexpr int kPlanBlocks = 120;

// A sequence's new pages per list, row blocks and tiles, packed in one word so that one scan adds
// up all three.
constexpr int kFieldBits = 21;
constexpr uint64_t kFieldMask = (uint64_t{1} << kFieldBits) - 1;
static_assert(kMaxRows <= int64_t{1} << (kFieldBits - 1));
enum Field : int { kNewPages = 0, kBlocks = kFieldBits, kTiles = 2 * kFieldBits };

__device__ __forceinline__ int64_t UnpackCount(uint64_t counts, Field field) {
  return static_cast<int64_t>((counts >> field) & kFieldMask);
}

__device__ __forceinline__ uint64_t CountsOf(const SequenceRows& rows) {
  const int pages = PagesFor(rows.position + rows.count) - PagesFor(rows.position);
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

// Span i of a sequence's rows, cut at multiples of `unit`.
__device__ RowBlock SpanOf(const BatchView& batch, int seq, int64_t i, int unit) {
  const SequenceRows rows = RowsOf(batch, seq);
  const int64_t begin = i == 0 ? rows.position : (rows.position / unit + i) * unit;
  const int64_t limit = (begin / unit + 1) * unit, end = rows.position + rows.count;
  RowBlock span;
  span.seq = seq;
  span.slot = rows.slot;
  span.first_row = static_cast<int32_t>(rows.first_row + begin - rows.position);
  span.count = static_cast<int32_t>((limit < end ? limit : end) - begin);
  span.position = static_cast<int32_t>(begin);
  return span;
}

__device__ void WriteSpans(const BatchView& batch, const uint64_t* before, Field field, int unit,
                           RowBlock* out) {
  const int64_t total = UnpackCount(before[batch.num_seqs], field);
  const auto begin = [&](int s) { return UnpackCount(before[s], field); };
  for (int64_t k = blockIdx.x * kBeginStepThreads + threadIdx.x; k < total;
       k += gridDim.x * kBeginStepThreads) {
    const int seq = UpperBoundIndex(k, batch.num_seqs, begin);
    out[k] = SpanOf(batch, seq, k - begin(seq), unit);
  }
}

// The k-th needed page is the k-th from the top of the free stack.
__device__ void TakePages(const BatchView& batch, const PagedKv& kv, const uint64_t* before) {
  const int64_t lists = kv.shape.lists_per_slot();
  const int64_t total = UnpackCount(before[batch.num_seqs], kNewPages) * lists;
  if (total == 0) return;
  const int64_t free_count = FreePages(kv);
  if (total > free_count) Report(kv, PoolFault::kOverdrawn);  // the scheduler broke its promise
  const auto begin = [&](int s) { return UnpackCount(before[s], kNewPages); };
  for (int64_t k = blockIdx.x * kBeginStepThreads + threadIdx.x; k < total;
       k += gridDim.x * kBeginStepThreads) {
    const int seq = UpperBoundIndex(k / lists, batch.num_seqs, begin);
    const int64_t of_seq = k - begin(seq) * lists, per_list = begin(seq + 1) - begin(seq);
    const int slot = batch.slot[seq];
    const int64_t list = kv.ListIndex(slot, 0, 0) + of_seq / per_list;
    const int64_t p = PagesFor(batch.position[seq]) + of_seq % per_list;
    if (p >= kv.shape.max_pages) {
      Report(kv, PoolFault::kTableEnd);
      continue;
    }
    // If none is left, page 0 is used, so that reads and writes stay in the pool.
    kv.Table(list)[p] = k < free_count ? TakePage(kv, slot, free_count - 1 - k) : 0;
  }
}

__global__ void __launch_bounds__(kBeginStepThreads)
    BeginStepKernel(const BatchView batch, const PagedKv kv, const StepSchedule schedule) {
  extern __shared__ uint64_t before[];  // [num_seqs + 1]
  WaitOnDependencies();
  TriggerDependents();
  PrefixCounts(batch, before);
  TakePages(batch, kv, before);
  WriteSpans(batch, before, kBlocks, kPageTokens, schedule.blocks);
  WriteSpans(batch, before, kTiles, kTileRows, schedule.tiles);
  if (blockIdx.x != 0) return;
  for (int seq = static_cast<int>(threadIdx.x); seq < batch.num_seqs; seq += kBeginStepThreads) {
    const SequenceRows rows = RowsOf(batch, seq);
    if (rows.slot < 0 || batch.is_draft(seq)) continue;
    kv.length[rows.slot] = rows.position + rows.count;
    const int64_t taken =
        UnpackCount(before[seq + 1], kNewPages) - UnpackCount(before[seq], kNewPages);
    kv.sole_pages[rows.slot] += static_cast<int32_t>(taken * kv.shape.lists_per_slot());
  }
  if (threadIdx.x == 0) {
    *schedule.num_blocks = static_cast<int32_t>(UnpackCount(before[batch.num_seqs], kBlocks));
    *schedule.num_tiles = static_cast<int32_t>(UnpackCount(before[batch.num_seqs], kTiles));
  }
}

// The SeqHead of one (sequence, head), which stands for all heads that are computed together with
// it if it is the first of them. Sets everything but its place, its own page and the number of
// splits before it: splits are numbered from 0. No splits if decode attention does not compute it.
__device__ __forceinline__ SeqHead SeqHeadOf(const BatchView& batch, const PagedKv& kv, int layer,
                                             int index) {
  const int seq = index / kv.shape.q_heads, head = index % kv.shape.q_heads;
  const int group = kv.shape.group(), together = HeadsTogether(kv.shape);
  const SequenceRows rows = RowsOf(batch, seq);
  SeqHead seq_head{};
  if (rows.count != 1 || head % group % together != 0) return seq_head;
  seq_head.index = index;
  seq_head.head = static_cast<int16_t>(head);
  seq_head.group_head = static_cast<int16_t>(head % group);
  seq_head.row = static_cast<int>(rows.first_row);
  seq_head.length = static_cast<int>(rows.position) + 1;
  seq_head.list = static_cast<int>(kv.ListIndex(rows.slot, layer, head / group));
  seq_head.first_live = kv.first_live[seq_head.list];
  seq_head.end = NumSplits(seq_head.first_live, LastPage(seq_head));
  return seq_head;
}

// The start of a block with the splits [first, last), if any, whose first one belongs to
// `seq_head`.
__device__ __forceinline__ BlockStart StartOf(const PagedKv& kv, int first, int last,
                                              const SeqHead& seq_head) {
  BlockStart start{};
  start.first = first;
  start.last = last;
  if (first == last) return start;
  start.seq_head = seq_head;
  const int last_page = LastPage(seq_head);
  const int shift = SplitShift(last_page + 1 - seq_head.first_live);
  start.first_page = SplitPage(seq_head.first_live, shift, first, seq_head.begin);
  const int32_t* table = kv.Table(seq_head.list);
  start.seq_head.own = table[last_page];
#pragma unroll
  for (int i = 0; i < kStartPages; ++i) {
    start.pages[i] = table[min(start.first_page + i, last_page)];
  }
  return start;
}

// The start of block b of the clusters. A cluster numbers its window's splits from 0 on.
__device__ BlockStart ClusterStartOf(const BatchView& batch, const PagedKv& kv, int layer, int b) {
  const SeqHead seq_head = SeqHeadOf(batch, kv, layer, b / kClusterBlocks);
  const int first = b % kClusterBlocks * kClusterBlockSplits;
  return StartOf(kv, first, max(first, seq_head.end), seq_head);
}

// Pops the pages that BeginStepKernel allocated from the free stack. By one thread block.
__device__ void CommitPops(const BatchView& batch, const PagedKv& kv) {
  __shared__ uint64_t warp_sums[kPlanThreads / kWarp];
  uint64_t taken = 0, total;
  for (int seq = static_cast<int>(threadIdx.x); seq < batch.num_seqs; seq += kPlanThreads) {
    taken += static_cast<uint64_t>(UnpackCount(CountsOf(RowsOf(batch, seq)), kNewPages));
  }
  InclusiveScan<kPlanThreads>(taken, warp_sums, total);
  if (threadIdx.x == 0 && total > 0) {
    const int64_t lists = kv.shape.lists_per_slot();
    const int64_t free_count = FreePages(kv),
                  left = free_count - static_cast<int64_t>(total) * lists;
    *kv.free_count = static_cast<int32_t>(left > 0 ? left : 0);
  }
}

// The first kNear seq_heads of a layer, in shared memory, for the search for a start's seq_head.
constexpr int kNear = 4096;
struct Near {
  int begin[kNear];  // their first splits
  int index[kNear];  // seq * q_heads + head
};

// Numbers of seq_heads and of their splits in a layer.
struct Planned {
  int seq_heads, splits;
};

// Finds where all splits of the layer begin, and writes the seq_heads of one of `parts` parts, and
// all behind the first kNear, which any part may look up. If there are more splits than fit, the
// last ones are omitted and their rows not written. Ends with a barrier.
__device__ Planned PlanSeqHeads(const BatchView& batch, const PagedKv& kv,
                                const StepSchedule& schedule, int layer, int part, int parts,
                                Near& near) {
  __shared__ uint64_t warp_sums[kPlanThreads / kWarp];
  constexpr uint64_t kOne = uint64_t{1} << 32;  // a seq_head; splits are below
  const int seq_heads = batch.num_seqs * kv.shape.q_heads;
  uint64_t carry = 0;
  for (int base = 0; base < seq_heads; base += kPlanThreads) {
    const int index = base + static_cast<int>(threadIdx.x);
    SeqHead seq_head{};
    if (index < seq_heads) seq_head = SeqHeadOf(batch, kv, layer, index);
    const uint64_t counts = seq_head.end > 0 ? kOne + static_cast<uint64_t>(seq_head.end) : 0;
    uint64_t total;
    const uint64_t sum = carry + InclusiveScan<kPlanThreads>(counts, warp_sums, total);
    carry += total;
    if (counts == 0) continue;
    const int end = static_cast<int>(sum);
    seq_head.place = static_cast<int>(sum / kOne) - 1;
    seq_head.begin = min(end - seq_head.end, schedule.max_splits);
    seq_head.end = min(end, schedule.max_splits);
    if (seq_head.place < kNear) {
      near.begin[seq_head.place] = seq_head.begin;
      near.index[seq_head.place] = index;
      if (index % parts != part) continue;
    }
    seq_head.own = kv.Table(seq_head.list)[LastPage(seq_head)];
    schedule.SeqHeads(layer)[seq_head.place] = seq_head;
  }
  __syncthreads();
  const int splits = static_cast<int>(carry);
  if (threadIdx.x == 0 && splits > schedule.max_splits) Report(kv, PoolFault::kSplitOverflow);
  return {static_cast<int>(carry / kOne), min(splits, schedule.max_splits)};
}

// The start of block b. A few splits go to the first blocks, which are on different SMs.
__device__ BlockStart SharedStartOf(const BatchView& batch, const PagedKv& kv,
                                    const StepSchedule& schedule, int layer, const Planned& planned,
                                    const Near& near, int b) {
  const SeqHead* seq_heads = schedule.SeqHeads(layer);
  const auto begin = [&](int i) { return i < kNear ? near.begin[i] : seq_heads[i].begin; };
  const int share = planned.splits / schedule.decode_blocks,
            rest = planned.splits % schedule.decode_blocks;
  const int first = b * share + min(b, rest), last = first + share + (b < rest ? 1 : 0);
  if (first == last) return StartOf(kv, first, last, {});
  const int place = UpperBoundIndex(first, planned.seq_heads, begin);
  if (place >= kNear) return StartOf(kv, first, last, seq_heads[place]);
  SeqHead seq_head = SeqHeadOf(batch, kv, layer, near.index[place]);
  seq_head.place = place;
  seq_head.begin = near.begin[place];
  seq_head.end = min(seq_head.begin + seq_head.end, schedule.max_splits);
  return StartOf(kv, first, last, seq_head);
}

// `parts` thread blocks share the plan of a layer, from `first_layer` on, and one more ends the
// taking of pages where `ends_taking`.
__global__ void __launch_bounds__(kPlanThreads)
    PlanSplitsKernel(const BatchView batch, const PagedKv kv, const StepSchedule schedule,
                     int first_layer, int parts, bool ends_taking) {
  __shared__ Near near;
  TriggerDependents();
  WaitOnDependencies();
  if (ends_taking && blockIdx.x + 1 == gridDim.x) return CommitPops(batch, kv);
  const int block = static_cast<int>(blockIdx.x), thread = static_cast<int>(threadIdx.x);
  const int layer = first_layer + block / parts, part = block % parts;
  Planned planned{};
  if (!schedule.by_clusters) planned = PlanSeqHeads(batch, kv, schedule, layer, part, parts, near);
  for (int b = thread * parts + part; b < schedule.decode_blocks; b += kPlanThreads * parts) {
    schedule.BlockStarts(layer)[b] =
        schedule.by_clusters ? ClusterStartOf(batch, kv, layer, b)
                             : SharedStartOf(batch, kv, schedule, layer, planned, near, b);
  }
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
  const bool overlaps = batch.num_rows <= kOverlapRows;
  const SmemConfig shared(static_cast<size_t>(batch.num_seqs + 1) * sizeof(uint64_t), overlaps);
  if (const cudaError_t error = CheckFreePages(kv, stream)) return error;
  const cudaError_t grown =
      Launch(BeginStepKernel, BlocksFor(most_pages, kBeginStepThreads, kMaxBeginStepBlocks),
             kBeginStepThreads, shared, stream, batch, kv, schedule);
  if (grown != cudaSuccess) return grown;
  const int parts = std::max(1, kPlanBlocks / kv.shape.layers);
  return Launch(PlanSplitsKernel, static_cast<unsigned>(kv.shape.layers * parts) + 1, kPlanThreads,
                SmemConfig(0, overlaps), stream, batch, kv, schedule, 0, parts, true);
}

cudaError_t PlanSplits(const BatchView& batch, const PagedKv& kv, const StepSchedule& schedule,
                       int layer, cudaStream_t stream) {
  return Launch(PlanSplitsKernel, 1, kPlanThreads, SmemConfig(0, batch.num_rows <= kOverlapRows),
                stream, batch, kv, schedule, layer, 1, false);
}

}  // namespace fox::cuda
