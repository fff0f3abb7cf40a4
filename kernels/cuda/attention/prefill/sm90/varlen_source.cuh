// VarlenSource: queries, keys and values in arrays of any strides, gates and boundaries of a
// VarlenState. There are no block counters and no row certificate. See plan.cuh.
#pragma once

#include <cuda.h>
#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/cuda/attention/merged_row.cuh"
#include "kernels/cuda/attention/prefill/sm90/plan.cuh"
#include "kernels/cuda/attention/varlen/state.h"
#include "kernels/cuda/ptx/fast_math.cuh"
#include "kernels/cuda/ptx/tma.cuh"

namespace fox::cuda {

static_assert(kVarlenTile == kTileRows && kVarlenTile == kTileKeys && kVarlenPage == kPageTokens);

// first_row is the tile's first token in the batch row.
struct VarlenWork : WorkTile {
  int32_t batch;
  int32_t track_max;  // 0: no logit can overflow against the diagonal tile's reference maximum
  int64_t index;      // of (head, tile) in the state's arrays
};

struct VarlenKvLoop {
  const double* base;   // cum_log_f of the diagonal tile; tiles to the left precede it
  const float4* local;  // its offsets
  int token;            // the diagonal tile's first
  int first_page, last_page, start_tile, kv_head, batch;
  double ref_log_decay;
};

struct VarlenSource {
  using Work = VarlenWork;
  using KvLoop = VarlenKvLoop;

  static constexpr bool kPadsLogSums = true, kSplitsKeys = false, kTransforms = false;

  CUtensorMap q_map, k_map, v_map;  // (column, token, head, batch row)
  VarlenState state;
  VarlenView out;
  int q_heads, group;
  float scale;             // of scores, to log2 units
  const float* max_logit;  // [sequences, q_heads] or null
  const float* sink;       // [q_heads] or null

  __device__ __forceinline__ int NumTiles() const { return *state.num_tiles; }
  __device__ __forceinline__ int NumHeads() const { return q_heads; }
  __device__ __forceinline__ int32_t* WorkCounter() const { return state.work_counter; }
  template <int kHeadDim>
  __device__ __forceinline__ float Scale() const {
    return scale;
  }
  __device__ __forceinline__ static bool TracksMax(const Work& work) { return work.track_max != 0; }

  template <bool kCertified>
  __device__ __forceinline__ void MakeWork(Work& work, int tile, int head, int, int) const {
    const VarlenTile rows = state.tiles[tile];
    work.index = state.HeadTile(head, tile);
    work.first_row = rows.first_token;
    work.count = rows.count;
    work.position = rows.position;
    work.head = head;
    work.start_tile = rows.position / kTileKeys;
    work.first_page = min(state.first_page[work.index], rows.position / kPageTokens);
    work.num_kv_tiles = work.start_tile - work.first_page / 2 + 1;
    work.ref_log_decay = state.cum_log_f[work.index] +
                         static_cast<double>(state.log_f_offset[work.index * kVarlenTile]);
    work.batch = rows.batch;
    const double spread =
        max_logit == nullptr
            ? INFINITY
            : 2 * kLog2EDouble * static_cast<double>(max_logit[rows.seq * q_heads + head]);
    work.track_max = spread <= kBoundedSpread ? 0 : 1;
  }

  __device__ __forceinline__ KvLoop MakeKvLoop(const Work& work) const {
    return {state.cum_log_f + work.index,
            reinterpret_cast<const float4*>(state.log_f_offset) + work.index * (kVarlenTile / 4),
            work.first_row,
            work.first_page,
            work.last_page(),
            work.start_tile,
            work.head / group,
            work.batch,
            work.ref_log_decay};
  }

  // A page's id is its first token in the batch row.
  template <bool kCertified>
  __device__ __forceinline__ TileGates ReadGates(const KvLoop& loop, int i, int lane, int&) const {
    static_assert(!kCertified);
    const int page = 2 * (loop.start_tile - i), token = loop.token - i * kVarlenTile;
    TileGates gates;
    gates.id0 = page >= loop.first_page ? token : -1;
    gates.id1 = page < loop.last_page ? token + kVarlenPage : -1;
    gates.StandIn();
    gates.base = loop.base[-i];
    gates.local = loop.local[lane - i * (kVarlenTile / 4)];
    gates.log_mass_bound = 0;
    return gates;
  }

  // One lane: a column block of the work tile's queries, or of a page.
  template <int kHeadDim>
  __device__ __forceinline__ void LoadQueries(void* block, const Work& work, int column,
                                              Mbarrier& full) const {
    TmaLoad4D(block, &q_map, column, work.first_row, work.head, work.batch, &full);
  }
  __device__ __forceinline__ void LoadPage(void* block, const CUtensorMap& map, const KvLoop& loop,
                                           int column, int page, Mbarrier& full) const {
    TmaLoad4D(block, &map, column, page, loop.kv_head, loop.batch, &full);
  }

  template <int kHeadDim>
  __device__ __forceinline__ __nv_bfloat16* OutRow(const Work& work, int row) const {
    return out.At<__nv_bfloat16>(work.batch, static_cast<int64_t>(work.first_row) + row, work.head);
  }

  __device__ __forceinline__ void MergeSink(const Work& work, int row, MergedRow& sums) const {
    if (sink == nullptr) return;
    sums.MergeSink(sink[work.head], state.RowDecay(work.index, row));
  }

  __device__ __forceinline__ void StoreLogSum(const Work& work, int row, bool real,
                                              float reference_max, float sum) const {
    state.lse[work.index * kVarlenTile + row] = real ? reference_max + log2f(sum) : INFINITY;
  }

  __device__ __forceinline__ static void CountBlocks(Work&, int) {}
};

}  // namespace fox::cuda
