// Shared definitions of PrefillSm90's warps: tile sizes, work tiles, the block's shared memory and
// its barriers.
//
// A Source is the kernel's argument and knows where rows, keys, values, gates and boundaries lie
// and where results go: PagedSource (paged_source.cuh) or VarlenSource (varlen_source.cuh).
//
// Three rings pass data on, each slot guarded by a full and an empty barrier: work tiles
// (scheduler -> all), query tiles and key/value tiles (loader -> consumers). A ring's n-th use has
// slot n % size and phase n / size % 2. Read producer.cuh next.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "kernels/cuda/ptx/mbarrier.cuh"
#include "kernels/cuda/ptx/wgmma.cuh"
#include "kernels/cuda/runtime/step_schedule.h"
#include "kernels/paging/paged_kv.h"

namespace fox::cuda {

inline constexpr int kTileKeys = 2 * kPageTokens;  // a key/value tile: pages 2t and 2t + 1
inline constexpr int kHalves = 2;                  // consumer warpgroups, 64 rows each
inline constexpr int kHalfRows = kTileRows / kHalves;
inline constexpr int kConsumerWarps = 4 * kHalves;
inline constexpr int kPrefillThreads = 128 + 128 * kHalves;
inline constexpr int kWorkStages = 4;
// The next work tile is fetched when this many key/value tiles of the current one are still to be
// requested.
inline constexpr int kTilesBeforeNext = 8;
inline constexpr int kQueryStages = 2;
// With logits within this of each other, in log2 units, no float32 or bf16 in the KV loop
// overflows: weights stay below 2^64, their sums below 2^96.
inline constexpr double kBoundedSpread = 64;
// With such logits, none overflows either without subtracting a maximum, in a row that has decayed
// by at most this since the tile's first row: weights stay below 2^96, and below 2^32 except for
// the tile's 128 keys; the row's own is at least 2^-32.
inline constexpr float kBoundedDecay = 64;

// A tile lies in shared memory as blocks of at most 64 columns, [128 rows][columns], whose rows
// fill one line of the swizzle.
template <int kHeadDim>
struct PrefillPlan {
  static constexpr int kColumns = kHeadDim < 64 ? kHeadDim : 64;
  static constexpr int kBlocks = kHeadDim / kColumns;
  static constexpr uint32_t kLineBytes = kColumns * 2;
  static constexpr uint32_t kPageBytes = kPageTokens * kLineBytes;  // of one column block
  static constexpr uint32_t kBlockBytes = kTileKeys * kLineBytes;
  static constexpr uint32_t kTileBytes = kBlocks * kBlockBytes;
  static constexpr Swizzle kSwizzle = kLineBytes == 128 ? Swizzle::k128 : Swizzle::k64;
  static constexpr uint32_t kStages = kHeadDim == 128 ? 2 : 4;
  // Where registers allow, a warpgroup holds the scores of two tiles; where they do not, the two
  // warpgroups take turns at issuing products.
  static constexpr bool kDoubleBufferedScores = kHeadDim < 128;
};

// A head tile (one query head of one tile of rows) or a split of its keys; a Source's Work adds
// fields.
struct WorkTile {
  int32_t first_row, count, position;  // as in RowBlock; count 0: there is no more work
  int32_t head;
  int32_t start_tile;    // the first key/value tile: the diagonal one except in later splits
  int32_t first_page;    // pages before it are excluded by the bound or belong to other splits
  int32_t num_kv_tiles;  // key/value tiles from start_tile down to first_page
  double ref_log_decay;  // c of the first row: biases are relative to it

  __device__ bool on_diagonal() const { return start_tile == position / kTileKeys; }
  __device__ int last_page() const { return (position + count - 1) / kPageTokens; }
  // In the start tile: the first visible key, and the last keys visible to the first row and to
  // the last row.
  __device__ int first_key() const { return first_page > 2 * start_tile ? kPageTokens : 0; }
  __device__ int own_key() const { return on_diagonal() ? position % kTileKeys : kTileKeys - 1; }
  __device__ int last_key() const {
    return on_diagonal() ? (position + count - 1) % kTileKeys : kTileKeys - 1;
  }
};

// The part of a key/value tile that the loader itself reads: page ids and gates. Four keys per
// lane.
struct TileGates {
  int id0, id1;      // of the two pages, as the source counts; -1: not visible
  int page0, page1;  // the pages that are loaded: a page that is not visible is replaced
  double base, log_mass_bound;
  float4 local;

  __device__ __forceinline__ void StandIn() {
    page0 = id0 >= 0 ? id0 : id1;
    page1 = id1 >= 0 ? id1 : id0;
  }
};

template <typename Source, int kHeadDim>
struct alignas(1024) PrefillShared {
  using Plan = PrefillPlan<kHeadDim>;

  uint8_t q[kQueryStages][Plan::kTileBytes];
  // Keys and values, by column blocks, and a block of ones (bf16) behind them all: see Values.
  uint8_t kv[2 * Plan::kStages * Plan::kBlocks][Plan::kBlockBytes];
  uint32_t ones[Plan::kBlockBytes / sizeof(uint32_t)];
  // Biases of the keys, log2 units: log2(e) (c_ref - c_j).
  float key_decay_bias[Plan::kStages][kTileKeys];
  // A row needs no key of this tile or left of it when its log2 of l 2^m reaches this.
  float stop_at[Plan::kStages];
  int32_t end[Plan::kStages];  // 1: no tile, the work tile's KV loop is over
  // The count of the next tile for this slot, if the half did not need the one before it.
  uint32_t needless_for[Plan::kStages][kHalves];
  typename Source::Work work_tiles[kWorkStages];
  int32_t ended_serial[kHalves];  // last serial head tile whose further splits the half skips

  Mbarrier work_full[kWorkStages], work_empty[kWorkStages];
  Mbarrier work_ending;  // the loader is near the end of the newest work tile
  Mbarrier q_full[kQueryStages], q_empty[kQueryStages];
  Mbarrier k_full[Plan::kStages], k_empty[Plan::kStages];
  Mbarrier v_full[Plan::kStages], v_empty[Plan::kStages];
  Mbarrier v_raw;  // values that the loader has yet to clear past the sequence's end

  // Column blocks of values are as far apart as the last of them is from the ones. So products see
  // an operand with eight more columns and add up a row's weights, too. Keys fill the free space:
  // k0 k1 k2 k3 v3 v2 v1 v0, or by blocks k1 k1 v1 k0 k0 v1 v0 v0.
  __device__ static constexpr uint32_t ValueStride(uint32_t stage) {
    return (Plan::kBlocks * stage + 1) * Plan::kBlockBytes;
  }
  __device__ uint8_t* Values(uint32_t stage) {
    return reinterpret_cast<uint8_t*>(ones) - Plan::kBlocks * ValueStride(stage);
  }
  __device__ uint8_t* Keys(uint32_t stage) {
    return kv[Plan::kBlocks == 1 ? stage : 3 - 3 * stage];
  }
  // Difference of the matrix descriptors of two neighbouring stages: the address and, for values,
  // the stride (`leading`). Descriptors are not rebuilt because a turn waits for them.
  static constexpr int64_t kKeyDescriptorStep =
      (Plan::kBlocks == 1 ? 1 : -3) * int64_t{Plan::kBlockBytes} / 16;
  static constexpr int64_t kValueDescriptorStep =
      int64_t{Plan::kBlocks} * Plan::kBlockBytes / 16 * ((int64_t{1} << 16) - Plan::kBlocks);
};

}  // namespace fox::cuda
