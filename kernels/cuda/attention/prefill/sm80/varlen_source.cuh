// VarlenSource of PrefillSm80: queries, keys and values in arrays of any strides, gates and
// boundaries of a VarlenState; no row certificate and no block counters. See tile.cuh.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/cuda/attention/merged_row.cuh"
#include "kernels/cuda/attention/prefill/sm80/tile.cuh"
#include "kernels/cuda/attention/varlen/state.h"
#include "kernels/cuda/ptx/fast_math.cuh"

namespace fox::cuda::sm80 {

static_assert(kVarlenTile == kTileRows && kVarlenPage == kPageTokens);

struct VarlenTileView : TileView {
  int batch, kv_head, first_token;  // in the batch row
  int64_t index;                    // of (head, tile) in the state's arrays
};

struct VarlenSource {
  using Tile = VarlenTileView;

  static constexpr bool kCertified = false, kPadsLogSums = true, kTransforms = false;

  VarlenState state;
  VarlenView q, k, v, out;
  int group;
  float scale;        // of q.k, to log2 units
  const float* sink;  // [q_heads] or null

  __device__ __forceinline__ int NumTiles() const { return *state.num_tiles; }

  __device__ __forceinline__ Tile ViewOf(int t, int head) const {
    const VarlenTile rows = state.tiles[t];
    Tile tile;
    tile.index = state.HeadTile(head, t);
    tile.batch = rows.batch;
    tile.first_token = rows.first_token;
    tile.count = rows.count;
    tile.position = rows.position;
    tile.head = head;
    tile.kv_head = head / group;
    tile.first_page = rows.position / kPageTokens;
    tile.last_page = (rows.position + rows.count - 1) / kPageTokens;
    tile.left = min(state.first_page[tile.index], tile.first_page);
    tile.ref_log_decay = state.cum_log_f[tile.index] +
                         static_cast<double>(state.log_f_offset[tile.index * kVarlenTile]);
    return tile;
  }

  __device__ __forceinline__ static __nv_bfloat16* Row(const VarlenView& view, const Tile& tile,
                                                       int head, int position) {
    const int token = tile.first_token + position - tile.position;
    return view.At<__nv_bfloat16>(tile.batch, token, head);
  }

  template <int kHeadDim>
  __device__ __forceinline__ GlobalRows Queries(const Tile& tile) const {
    return {Row(q, tile, tile.head, tile.position), q.token_stride};
  }
  __device__ __forceinline__ static bool Covers(int, int) { return true; }
  __device__ __forceinline__ static int PageAt(const Tile&, int n) { return n; }
  template <int kHeadDim>
  __device__ __forceinline__ GlobalRows Keys(const Tile& tile, int, int page) const {
    return {Row(k, tile, tile.kv_head, page * kPageTokens), k.token_stride};
  }
  template <int kHeadDim>
  __device__ __forceinline__ GlobalRows Values(const Tile& tile, int, int page) const {
    return {Row(v, tile, tile.kv_head, page * kPageTokens), v.token_stride};
  }
  // A sequence's tiles follow each other in the state.
  __device__ __forceinline__ GlobalGates Gates(const Tile& tile, int page) const {
    const int64_t index = tile.index + (page / 2 - tile.position / kVarlenTile);
    return {state.log_f_offset + index * kVarlenTile + page % 2 * kVarlenPage,
            state.cum_log_f + index};
  }

  template <int kHeadDim>
  __device__ __forceinline__ __nv_bfloat16* OutRow(const Tile& tile, int row) const {
    return Row(out, tile, tile.head, tile.position + row);
  }

  __device__ __forceinline__ void MergeSink(const Tile& tile, int row, MergedRow& sums) const {
    if (sink == nullptr) return;
    sums.MergeSink(sink[tile.head], state.RowDecay(tile.index, row));
  }

  __device__ __forceinline__ void StoreLogSum(const Tile& tile, int row, float row_max,
                                              float sum) const {
    state.lse[tile.index * kVarlenTile + row] = row < tile.count ? row_max + Log2(sum) : INFINITY;
  }

  __device__ __forceinline__ static void CountBlocks(const Tile&, int) {}
};

}  // namespace fox::cuda::sm80
