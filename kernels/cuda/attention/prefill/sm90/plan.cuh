// What the warps of PrefillSm90 share: tile sizes, the block's shared memory and its barriers, work
// work tiles, and the kernel's arguments.
//
// Three rings hand things on, each slot guarded by a full and an empty barrier: work tiles
// (scheduler -> all), query tiles and key/value tiles (loader -> consumers). A ring's n-th use has
// slot n % size and phase n / size % 2. Read producer.cuh next.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "kernels/acp.h"
#include "kernels/cuda/ptx/mbarrier.cuh"
#include "kernels/cuda/ptx/wgmma.cuh"
#include "kernels/cuda/runtime/step_schedule.h"
#include "kernels/paged_kv.h"

namespace fox::cuda {

inline constexpr int kTileKeys = 2 * kPageTokens;  // a key/value tile: pages 2t and 2t + 1
inline constexpr int kHalves = 2;                  // consumer warpgroups, 64 rows each
inline constexpr int kHalfRows = kTileRows / kHalves;
inline constexpr int kConsumerWarps = 4 * kHalves;
inline constexpr int kPrefillThreads = 128 + 128 * kHalves;
inline constexpr int kWorkStages = 3;
// The next work tile is fetched when so many of a work tile's key/value tiles are still to be
// requested.
inline constexpr int kTilesBeforeNext = 8;
inline constexpr int kQueryStages = 2;
// Heads that run side by side, so that their keys and values stay in the L2 cache.
inline constexpr int kHeadGroup = 8;

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
  // Of scores, to log2 units: log2(e) / sqrt(head_dim).
  static constexpr float kScale = kHeadDim == 128  ? 0.12751743f
                                  : kHeadDim == 64 ? 0.18033688f
                                                   : 0.25503486f;
};

// One query head of one tile.
struct WorkTile {
  int32_t first_row, count, position;  // as in RowBlock; count 0: there is no more work
  int32_t seq, head;
  int32_t first_page;    // the bound excludes those before it
  int32_t num_kv_tiles;  // key/value tiles from the diagonal down to first_page
  int32_t track_max;  // 0: no logit can overflow against the reference maximum of the diagonal tile
  int64_t table;      // of the page list, offset in kv.page_table
  double ref_log_decay;  // c of the first row: biases are relative to it
  double log_tolerance;  // log eps, less what rounding within the tile costs the certificate
  // Written by the halves when they are done, for the counters.
  int32_t visited;  // key/value tiles, the larger of the halves' numbers
  int32_t halves_done;

  __device__ int diagonal() const { return position / kTileKeys; }
  __device__ int last_page() const { return (position + count - 1) / kPageTokens; }
  // In the diagonal tile: the first key that is seen, and the last row's own.
  __device__ int first_key() const { return first_page > 2 * diagonal() ? kPageTokens : 0; }
  __device__ int last_key() const { return (position + count - 1) % kTileKeys; }
};

template <int kHeadDim>
struct alignas(1024) PrefillShared {
  using Plan = PrefillPlan<kHeadDim>;

  uint8_t q[kQueryStages][Plan::kTileBytes];
  uint8_t k[Plan::kStages][Plan::kTileBytes];
  uint8_t v[Plan::kStages][Plan::kTileBytes];
  // Of the keys, log2 units: log2(e) (c_ref - c_j).
  float key_decay_bias[Plan::kStages][kTileKeys];
  // A row needs no key of this tile or left of it when its log2 of l 2^m reaches this.
  float stop_at[Plan::kStages];
  int32_t end[Plan::kStages];            // 1: no tile, the work tile's walk is over
  int32_t done[Plan::kStages][kHalves];  // 1: the half did not need the tile that was here
  WorkTile work_tiles[kWorkStages];

  Mbarrier work_full[kWorkStages], work_empty[kWorkStages];
  Mbarrier work_ending;  // the loader is near the end of the newest work tile
  Mbarrier q_full[kQueryStages], q_empty[kQueryStages];
  Mbarrier k_full[Plan::kStages], k_empty[Plan::kStages];
  Mbarrier v_full[Plan::kStages], v_empty[Plan::kStages];
  Mbarrier v_raw;  // values that the loader has yet to clear past the sequence's end
};

struct PrefillArguments {
  CUtensorMap q_map, k_map, v_map;
  PagedKv kv;
  StepSchedule schedule;
  int layer;
  const double* log_tolerance;     // [num_seqs], or null: no certificate
  const double* max_logit_bound;   // [q_heads] or null
  const double* max_norm_product;  // [q_heads], for the certificate
  void* out;                       // bf16
  int64_t out_stride;
  float* lse;  // or null
  int64_t lse_stride;
  int64_t* blocks_total;
  int64_t* blocks_pruned;
};

}  // namespace fox::cuda
