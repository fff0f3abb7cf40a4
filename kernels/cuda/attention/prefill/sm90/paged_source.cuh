// PagedSource: the keys, values, gates and boundaries of the server's cache, by pages, with the row
// certificate, the block counters and splits over keys. See plan.cuh.
#pragma once

#include <cuda.h>
#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/cuda/attention/merged_row.cuh"
#include "kernels/cuda/attention/prefill/quad_rows.cuh"
#include "kernels/cuda/attention/prefill/sm90/plan.cuh"
#include "kernels/cuda/primitives/output_transform.cuh"
#include "kernels/cuda/primitives/warp.cuh"
#include "kernels/cuda/ptx/fast_math.cuh"
#include "kernels/cuda/ptx/global_memory.cuh"
#include "kernels/cuda/ptx/tma.cuh"
#include "kernels/cuda/runtime/step_schedule.h"
#include "kernels/paging/acp.h"
#include "kernels/paging/paged_kv.h"

namespace fox::cuda {

struct PagedWork : WorkTile {
  int32_t seq;
  int32_t track_max;     // 0: no logit can overflow against the diagonal tile's reference maximum
  int64_t table;         // of the page list, offset in kv.page_table
  double log_tolerance;  // log eps minus the certificate's rounding within the tile
  int32_t unsplit_first_page;  // of the whole head tile
  int32_t partial_row;         // of the split's first row; -1: the head tile is not split
  // Serial splits: the head tile's number in this thread block (else 0), and the splits that follow
  // this one.
  int32_t serial, splits_left;
  // A row needs no split left of this one when its log2 of l 2^m over all splits so far reaches
  // this (acp.md 2d).
  float stop_at_next;
  int32_t visited;  // 1 + the key/value tiles visited by the half that finished first; 0: none
};

// A work tile's constants, in registers because shared memory would be read for every tile.
struct PagedKvLoop {
  const int32_t* table;
  int first_page, last_page, start_tile, group, in_group;
  double ref_log_decay, log_tolerance;
  int wide;  // place of page 0 in schedule.wide; negative: pages are loaded from the pool
};

struct PagedSource {
  using Work = PagedWork;
  using KvLoop = PagedKvLoop;

  static constexpr bool kPadsLogSums = false, kSplitsKeys = true, kTransforms = true;

  CUtensorMap q_map, k_map, v_map;
  PagedKv kv;
  StepSchedule schedule;
  int layer;
  int group;                       // query heads of a kv head
  const double* log_tolerance_of;  // [num_seqs], or null: no certificate
  const double* max_logit_bound;   // [q_heads] or null
  const double* max_norm_product;  // [q_heads], for the certificate
  void* out;                       // bf16
  int64_t out_stride;
  OutputTransformArguments transform;
  float* lse;  // or null
  int64_t lse_stride;
  int64_t* blocks_total;
  int64_t* blocks_pruned;

  __device__ __forceinline__ int NumTiles() const { return *schedule.num_tiles; }
  __device__ __forceinline__ int NumHeads() const { return kv.shape.q_heads; }
  __device__ __forceinline__ int32_t* WorkCounter() const { return schedule.tile_counter; }
  // Number of parallel splits, without the splits that contain the diagonal.
  __device__ __forceinline__ int NumSplits() const {
    return schedule.key_splits.partial_rows == nullptr ? 0 : *schedule.key_splits.num_splits;
  }
  // True if splits precede unsplit head tiles, whose KV loops are longer in long prompts.
  __device__ __forceinline__ bool SplitsFirst() const {
    return schedule.key_splits.partial_rows != nullptr && *schedule.key_splits.splits_first != 0;
  }
  __device__ __forceinline__ void PlaceOfSplit(int index, int* tile, int* head, int* split) const {
    const KeySplit place = schedule.key_splits.splits[index];
    *tile = place.tile;
    *head = place.head;
    *split = place.index;
  }
  // True if this launch computes the head tile.
  __device__ __forceinline__ bool Covers(int tile, int head) const {
    return schedule.wide.Covers(schedule.tiles[tile].seq, head / group, kv.shape.kv_heads);
  }
  __device__ __forceinline__ static bool IsSplit(const Work& work) { return work.partial_row >= 0; }
  __device__ __forceinline__ static bool IsSerial(const Work& work) { return work.serial != 0; }

  // Factor from products q.k to log2 units: log2(e) / sqrt(head_dim).
  template <int kHeadDim>
  __device__ __forceinline__ static constexpr float Scale() {
    return kHeadDim == 128 ? 0.12751743f : kHeadDim == 64 ? 0.18033688f : 0.25503486f;
  }
  __device__ __forceinline__ static bool TracksMax(const Work& work) { return work.track_max != 0; }

  // c of a position that lies in `page`.
  __device__ __forceinline__ double GateOf(int page, int in_group, int position) const {
    const int64_t own = static_cast<int64_t>(page) * group + in_group;
    const float* local = static_cast<const float*>(kv.log_f_offset) + own * kPageTokens;
    return kv.page_cum_log_f[own] + static_cast<double>(local[position % kPageTokens]);
  }
  __device__ __forceinline__ double CumulativeGate(const Work& work, int position) const {
    return GateOf(kv.page_table[work.table + position / kPageTokens], work.head % group, position);
  }

  // The fields that depend on the tile's rows alone.
  __device__ __forceinline__ void PlaceWork(Work& work, const RowBlock& rows, int head) const {
    work.first_row = rows.first_row;
    work.count = rows.count;
    work.position = rows.position;
    work.seq = rows.seq;
    work.head = head;
    work.table = kv.ListIndex(rows.slot, layer, head / group) * kv.shape.max_pages;
  }

  // Fills a slot of shared memory, by one lane that has few registers. Its loads run in three
  // rounds, each of which depends on the one before. `serial`: the head tile's number in this
  // thread block, used if its splits run serially.
  template <bool kCertified>
  __device__ __forceinline__ void MakeWork(Work& work, int tile, int head, int split,
                                           int serial) const {
    const KeySplits& splits = schedule.key_splits;
    const int64_t head_tile = schedule.HeadTile(head, tile);
    const RowBlock rows = schedule.tiles[tile];
    const int boundary = schedule.boundary[head_tile];
    const int planned_row = splits.partial_rows == nullptr ? -1 : splits.partial_rows[head_tile];
    const double max_logit = max_logit_bound == nullptr ? INFINITY : max_logit_bound[head];
    PlaceWork(work, rows, head);
    const bool certified = kCertified && log_tolerance_of != nullptr && max_norm_product != nullptr;
    const double max_product = certified ? max_norm_product[head] : 0;

    const int in_group = head % group, last = rows.position + rows.count - 1;
    const int32_t* table = kv.page_table + work.table;
    const int first_row_page = table[rows.position / kPageTokens];
    const int last_row_page = kCertified ? table[last / kPageTokens] : 0;
    const double log_tolerance = certified ? log_tolerance_of[rows.seq] : -INFINITY;

    const double ref_log_decay = GateOf(first_row_page, in_group, rows.position);
    const double last_log_decay = kCertified ? GateOf(last_row_page, in_group, last) : 0;
    // No key's bias exceeds the biases of the start tile, in which each row sees a key.
    work.track_max = 2 * max_logit * kLog2EDouble <= kBoundedSpread ? 0 : 1;
    work.start_tile = rows.position / kTileKeys;
    work.first_page = work.unsplit_first_page = min(boundary, rows.position / kPageTokens);
    work.partial_row = -1;
    work.serial = work.splits_left = work.visited = 0;
    if (splits.out != nullptr) TakeSplit(work, split, planned_row, serial);
    work.num_kv_tiles = work.start_tile - work.first_page / 2 + 1;
    work.ref_log_decay = ref_log_decay;
    work.log_tolerance = log_tolerance - kWeightSumRounding -
                         RowRounding(kv.shape.head_dim, max_product, last_log_decay, ref_log_decay);
    work.stop_at_next = StopAtNext<kCertified>(work);
  }

  // Narrows the work tile to split number `split` if the head tile is split.
  __device__ __forceinline__ void TakeSplit(Work& work, int split, int planned_row,
                                            int serial) const {
    const KeySplits& splits = schedule.key_splits;
    const int first_tile = work.first_page / 2, last_tile = work.start_tile;
    const int count =
        NumKeySplits(first_tile, last_tile, splits.least_shift, splits.first_split_tile);
    if (count == 1) return;
    if (planned_row >= 0) {
      work.partial_row = planned_row + split * work.count;
    } else {
      work.partial_row = static_cast<int>(blockIdx.x) * kTileRows;
      work.serial = serial;
      work.splits_left = count - 1 - split;
    }
    const KeyTileRange range = TilesOfSplit(first_tile, last_tile, splits.least_shift, split);
    work.start_tile = range.last;
    work.first_page = max(work.first_page, 2 * range.first);
  }

  // From a serial split to the one left of it.
  template <bool kCertified>
  __device__ __forceinline__ void MoveToNextSplit(Work& work) const {
    const int first_tile = work.unsplit_first_page / 2;
    const int shift =
        KeySplitShift(first_tile, work.position / kTileKeys, schedule.key_splits.least_shift);
    work.start_tile = work.first_page / 2 - 1;
    work.first_page = max(work.unsplit_first_page, 2 * (work.start_tile >> shift << shift));
    work.num_kv_tiles = work.start_tile - work.first_page / 2 + 1;
    work.visited = 0;
    --work.splits_left;
    work.stop_at_next = StopAtNext<kCertified>(work);
  }

  template <bool kCertified>
  __device__ __forceinline__ float StopAtNext(const Work& work) const {
    if (!kCertified || work.first_page == work.unsplit_first_page ||
        !(work.log_tolerance > -INFINITY)) {
      return INFINITY;
    }
    const int in_group = work.head % group;
    const int32_t* table = kv.page_table + work.table;
    const int last = work.first_page - 1, left = max(last - 1, work.unsplit_first_page);
    const double base = kv.page_cum_log_f[static_cast<int64_t>(table[left]) * group + in_group];
    const double log_mass_bound =
        kv.log_mass_bound[static_cast<int64_t>(table[last]) * group + in_group];
    const double rounding = RowRounding(kv.shape.head_dim, 0, work.ref_log_decay, base);
    const double log_z =
        LogDenominatorToStop(log_mass_bound, work.ref_log_decay, rounding, work.log_tolerance);
    return __double2float_ru(log_z * kLog2EDouble);
  }

  __device__ __forceinline__ KvLoop MakeKvLoop(const Work& work) const {
    return {kv.page_table + work.table,
            work.first_page,
            work.last_page(),
            work.start_tile,
            group,
            work.head % group,
            work.ref_log_decay,
            work.log_tolerance,
            schedule.wide.PlaceOf(work.seq, work.head / group, kv.shape.kv_heads)};
  }

  // The gates of the loop's i-th tile; the lane keeps `ids` from the first tile to the last.
  template <bool kCertified>
  __device__ __forceinline__ TileGates ReadGates(const KvLoop& loop, int i, int lane,
                                                 int& ids) const {
    constexpr int kTilesRead = kWarp / 2;  // page ids are read a warp at a time
    if (i % kTilesRead == 0) {
      const int page = 2 * (loop.start_tile - i) + 1 - lane;
      ids = page >= loop.first_page && page <= loop.last_page ? loop.table[page] : -1;
    }
    TileGates gates;
    gates.id1 = FromLane(ids, 2 * (i % kTilesRead));
    gates.id0 = FromLane(ids, 2 * (i % kTilesRead) + 1);
    gates.StandIn();
    const int64_t own =
        static_cast<int64_t>(lane < 16 ? gates.page0 : gates.page1) * loop.group + loop.in_group;
    gates.base = kv.page_cum_log_f[own];
    gates.local =
        reinterpret_cast<const float4*>(kv.log_f_offset)[own * (kPageTokens / 4) + lane % 16];
    gates.log_mass_bound = 0;
    if constexpr (kCertified) {
      if (i > 0)
        gates.log_mass_bound =
            kv.log_mass_bound[static_cast<int64_t>(gates.page1) * loop.group + loop.in_group];
    }
    if (loop.wide >= 0) {
      const int right = loop.wide + 2 * (loop.start_tile - i) + 1;
      gates.page0 = gates.id0 >= 0 ? right - 1 : right;
      gates.page1 = gates.id1 >= 0 ? right : right - 1;
    }
    return gates;
  }

  // One lane: a column block of the work tile's queries, or of a page.
  template <int kHeadDim>
  __device__ __forceinline__ void LoadQueries(void* block, const Work& work, int column,
                                              Mbarrier& full) const {
    TmaLoad2D(block, &q_map, work.head * kHeadDim + column, work.first_row, &full);
  }
  __device__ __forceinline__ void LoadPage(void* block, const CUtensorMap& map, const KvLoop&,
                                           int column, int page, Mbarrier& full) const {
    TmaLoad2D(block, &map, column, page * kPageTokens, &full);
  }

  template <int kHeadDim>
  __device__ __forceinline__ __nv_bfloat16* OutRow(const Work& work, int row) const {
    return static_cast<__nv_bfloat16*>(out) +
           (static_cast<int64_t>(work.first_row) + row) * out_stride + work.head * kHeadDim;
  }

  // By a warp: the output gates of rows that are finished by this work tile.
  template <int kHeadDim>
  __device__ __forceinline__ void PrefetchGates(const Work& work, int lane) const {
    if (transform.gate == nullptr || work.splits_left > 0) return;
    constexpr int kLine = 128 / sizeof(__nv_bfloat16);
    for (int row = lane; row < work.count; row += kWarp) {
      const __nv_bfloat16* gates = GatesOf<kHeadDim>(transform, work.first_row + row, work.head);
#pragma unroll
      for (int column = 0; column < kHeadDim; column += kLine) Prefetch(gates + column);
    }
  }

  template <int kHeadDim>
  __device__ __forceinline__ float* PartialOut(const Work& work, int row) const {
    return schedule.key_splits.out + static_cast<int64_t>(work.partial_row + row) * kHeadDim;
  }
  __device__ __forceinline__ float2* PartialSoftmax(const Work& work, int row) const {
    return reinterpret_cast<float2*>(schedule.key_splits.softmax) + work.partial_row + row;
  }

  // Rows past the tile's end get the sink of the last one.
  __device__ __forceinline__ void MergeSink(const Work& work, int row, MergedRow& sums) const {
    if (transform.sink == nullptr) return;
    const int position = work.position + min(row, work.count - 1);
    sums.MergeSink(transform.sink[work.head], CumulativeGate(work, position) - work.ref_log_decay);
  }

  // Scores are relative to c_ref: s + c_ref - c_j; the row's logits are s + c_i - c_j.
  __device__ __forceinline__ void StoreLogSum(const Work& work, int row, bool real,
                                              float reference_max, float sum) const {
    if (lse == nullptr || !real) return;
    const double decay = CumulativeGate(work, work.position + row) - work.ref_log_decay;
    const double log_sum =
        static_cast<double>(kLn2) * (static_cast<double>(reference_max) + log2f(sum));
    lse[(static_cast<int64_t>(work.first_row) + row) * lse_stride + work.head] =
        sum > 0 ? static_cast<float>(log_sum + decay) : 0.0f;
  }

  // One thread of each half: the half that finishes last counts the pages in the tile's causal
  // range and the skipped ones. With several splits, the first one adds the range and the pages
  // before the boundary, and each one the pages that it skipped itself.
  __device__ __forceinline__ void CountBlocks(Work& work, int visited) const {
    const int first_done = atomicAdd_block(&work.visited, visited + 1);
    if (first_done == 0) return;
    visited = max(visited, first_done - 1);
    const int page = work.position / kPageTokens;
    const int here = min(work.count, (page + 1) * kPageTokens - work.position);
    const int64_t total = static_cast<int64_t>(here) * (page + 1) +
                          static_cast<int64_t>(work.count - here) * (page + 2);
    const int left = max(work.first_page, 2 * (work.start_tile - visited + 1));
    int pruned = left - work.first_page;
    if (work.on_diagonal()) {
      pruned += work.unsplit_first_page;
      Add(blocks_total, work.seq, total);
    }
    Add(blocks_pruned, work.seq, static_cast<int64_t>(work.count) * pruned);
  }
  // For serial splits that ended with this one.
  __device__ __forceinline__ void CountUnvisited(const Work& work) const {
    const int pages = work.first_page - work.unsplit_first_page;
    Add(blocks_pruned, work.seq, static_cast<int64_t>(work.count) * pages);
  }
  __device__ __forceinline__ static void Add(int64_t* counts, int seq, int64_t amount) {
    if (counts == nullptr) return;
    atomicAdd(reinterpret_cast<unsigned long long*>(counts) + seq,
              static_cast<unsigned long long>(amount));
  }
};

}  // namespace fox::cuda
