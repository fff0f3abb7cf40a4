// PagedSource of PrefillSm80: the keys, values, gates and boundaries of the server's cache, by
// pages, with the row certificate and the block counters. See tile.cuh.
#pragma once

#include <cuda_bf16.h>
#include <math_constants.h>

#include <cstdint>

#include "kernels/cuda/attention/merged_row.cuh"
#include "kernels/cuda/attention/prefill/sm80/tile.cuh"
#include "kernels/cuda/primitives/output_transform.cuh"
#include "kernels/cuda/ptx/fast_math.cuh"
#include "kernels/cuda/runtime/step_schedule.h"
#include "kernels/paging/paged_kv.h"

namespace fox::cuda::sm80 {

struct PagedTileView : TileView {
  int seq, first_row;
  int in_group, group;
  const int32_t* table;
  double c_last;            // of the last row
  double log_eps;           // -infinity: no row stops by itself
  double max_norm_product;  // of a query and a key; infinite: unknown
  int wide;                 // place of page 0 in schedule.wide; negative: keys are in the pool

  // The index of a page's and query head's quantities.
  __device__ int64_t Summary(int32_t page) const {
    return static_cast<int64_t>(page) * group + in_group;
  }
  __device__ int64_t GateIndex(int row) const {
    const int at = position + row;
    return Summary(table[at / kPageTokens]) * kPageTokens + at % kPageTokens;
  }
};

struct PagedSource {
  using Tile = PagedTileView;

  static constexpr bool kCertified = true, kPadsLogSums = false, kTransforms = true;

  PagedKv kv;
  StepSchedule schedule;
  const __nv_bfloat16* q;
  __nv_bfloat16* out;
  float* lse;  // or null
  int64_t q_stride, out_stride, lse_stride;
  OutputTransformArguments transform;
  const double* log_tolerance;     // null: rows do not stop by themselves
  const double* max_norm_product;  // [q_heads] or null
  int64_t* blocks_total;           // or null
  int64_t* blocks_pruned;
  int layer;
  float scale;  // log2(e) / sqrt(head_dim)

  __device__ __forceinline__ int NumTiles() const { return *schedule.num_tiles; }
  // True if this launch computes the tile.
  __device__ __forceinline__ bool Covers(int t, int head) const {
    return schedule.wide.Covers(schedule.tiles[t].seq, head / kv.shape.group(), kv.shape.kv_heads);
  }

  __device__ __forceinline__ double CumulativeGate(int64_t gate_index) const {
    return kv.page_cum_log_f[gate_index / kPageTokens] +
           static_cast<double>(static_cast<const float*>(kv.log_f_offset)[gate_index]);
  }

  __device__ __forceinline__ Tile ViewOf(int t, int head) const {
    const RowBlock rows = schedule.tiles[t];
    Tile tile;
    tile.count = rows.count;
    tile.position = rows.position;
    tile.seq = rows.seq;
    tile.first_row = rows.first_row;
    tile.head = head;
    tile.group = kv.shape.group();
    tile.in_group = head % tile.group;
    tile.table = kv.Table(kv.ListIndex(rows.slot, layer, head / tile.group));
    tile.first_page = rows.position / kPageTokens;
    tile.last_page = (rows.position + rows.count - 1) / kPageTokens;
    tile.left = min(schedule.boundary[schedule.HeadTile(head, t)], tile.first_page);
    tile.ref_log_decay = CumulativeGate(tile.GateIndex(0));
    tile.c_last = CumulativeGate(tile.GateIndex(rows.count - 1));
    tile.max_norm_product = max_norm_product == nullptr ? CUDART_INF : max_norm_product[head];
    tile.log_eps = log_tolerance == nullptr ? -CUDART_INF : log_tolerance[rows.seq];
    tile.wide = schedule.wide.PlaceOf(rows.seq, head / tile.group, kv.shape.kv_heads);
    return tile;
  }

  template <int kHeadDim>
  __device__ __forceinline__ GlobalRows Queries(const Tile& tile) const {
    return {q + tile.first_row * q_stride + tile.head * kHeadDim, q_stride};
  }
  __device__ __forceinline__ int PageAt(const Tile& tile, int n) const { return tile.table[n]; }
  // Keys of the sequence's page n, whose id is `page`; Values likewise.
  template <int kHeadDim>
  __device__ __forceinline__ GlobalRows Keys(const Tile& tile, int n, int page) const {
    return Rows<kHeadDim>(tile, n, page, kv.keys, schedule.wide.keys);
  }
  template <int kHeadDim>
  __device__ __forceinline__ GlobalRows Values(const Tile& tile, int n, int page) const {
    return Rows<kHeadDim>(tile, n, page, kv.values, schedule.wide.values);
  }
  template <int kHeadDim>
  __device__ __forceinline__ static GlobalRows Rows(const Tile& tile, int n, int page,
                                                    const void* pool, const void* wide) {
    const int64_t first = int64_t{tile.wide < 0 ? page : tile.wide + n} * (kPageTokens * kHeadDim);
    return {static_cast<const __nv_bfloat16*>(tile.wide < 0 ? pool : wide) + first, kHeadDim};
  }
  __device__ __forceinline__ GlobalGates Gates(const Tile& tile, int page) const {
    const int64_t summary = tile.Summary(page);
    return {kv.LogFOffsets<float>(summary), kv.page_cum_log_f + summary};
  }
  // E of the page left of page n.
  __device__ __forceinline__ const double* NextScore(const Tile& tile, int n) const {
    return kv.log_mass_bound + tile.Summary(tile.table[n - 1]);
  }

  template <int kHeadDim>
  __device__ __forceinline__ __nv_bfloat16* OutRow(const Tile& tile, int row) const {
    return out + (tile.first_row + row) * out_stride + tile.head * kHeadDim;
  }

  // Rows past the tile's end get the sink of the last row.
  __device__ __forceinline__ void MergeSink(const Tile& tile, int row, MergedRow& sums) const {
    if (transform.sink == nullptr) return;
    const int64_t own = tile.GateIndex(min(row, tile.count - 1));
    sums.MergeSink(transform.sink[tile.head], CumulativeGate(own) - tile.ref_log_decay);
  }

  __device__ __forceinline__ void StoreLogSum(const Tile& tile, int row, float row_max,
                                              float sum) const {
    if (lse == nullptr || row >= tile.count) return;
    const double own = CumulativeGate(tile.GateIndex(row)) - tile.ref_log_decay;
    lse[(tile.first_row + row) * lse_stride + tile.head] =
        kLn2 * (row_max + Log2(sum)) + static_cast<float>(own);
  }

  // `visited`: the leftmost page that the tile attended to.
  __device__ __forceinline__ void CountBlocks(const Tile& tile, int visited) const {
    const int in_first = min(tile.count, kPageTokens - tile.position % kPageTokens);
    const int64_t total = static_cast<int64_t>(tile.count) * (tile.last_page + 1) -
                          (tile.last_page > tile.first_page ? in_first : 0);
    const int64_t skipped = static_cast<int64_t>(tile.count) * visited;
    using Counter = unsigned long long;
    const auto add = [&](int64_t* counters, int64_t count) {
      if (counters == nullptr) return;
      atomicAdd(reinterpret_cast<Counter*>(counters + tile.seq), static_cast<Counter>(count));
    };
    add(blocks_total, total);
    add(blocks_pruned, skipped);
  }
};

}  // namespace fox::cuda::sm80
