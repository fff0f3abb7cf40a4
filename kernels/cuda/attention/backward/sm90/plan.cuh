// Shared definitions of BackwardSm90's warps: tile sizes, the layout of the block's shared memory
// and its barriers, and the kernel's arguments.
//
// Rings pass data on, each slot guarded by a full and an empty barrier: work items and their
// values and keys (loader -> consumers), steps with queries and output gradients (loader ->
// consumers), and the products with keys (consumers -> adder). A ring's n-th use has slot n % size
// and phase n / size % 2. Read producer.cuh next.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "kernels/core/host_device.h"
#include "kernels/cuda/attention/varlen/state.h"
#include "kernels/cuda/ptx/mbarrier.cuh"
#include "kernels/cuda/ptx/wgmma.cuh"

namespace fox::cuda {

inline constexpr int kWarpgroups = 2;  // of consumers, 64 keys each
inline constexpr int kWarpgroupKeys = kVarlenTile / kWarpgroups;
inline constexpr int kBackwardWarps = 4 * kWarpgroups;
inline constexpr int kBackwardThreads = 128 + 128 * kWarpgroups;
inline constexpr uint32_t kItemSlots = 2, kStepSlots = 2;
// Kv heads that run in parallel, so that their inputs stay in the L2 cache.
inline constexpr int kBackwardHeadGroup = 4;

// Tiles lie in shared memory as blocks of at most 64 columns whose rows fill one line of the
// swizzle.
template <int kHeadDim>
struct BackwardPlan {
  static constexpr int kRows = kHeadDim == 128 ? 64 : 128;  // of a step
  static constexpr int kSubtiles = kVarlenTile / kRows;     // steps of a row tile
  static constexpr int kColumns = kHeadDim < 64 ? kHeadDim : 64;
  static constexpr int kBlocks = kHeadDim / kColumns;
  static constexpr uint32_t kLineBytes = kColumns * 2;
  static constexpr Swizzle kSwizzle = kLineBytes == 128 ? Swizzle::k128 : Swizzle::k64;
  static constexpr uint32_t kKeyBlockBytes = kVarlenTile * kLineBytes;
  static constexpr uint32_t kKeyTileBytes = kBlocks * kKeyBlockBytes;
  static constexpr uint32_t kRowBlockBytes = kRows * kLineBytes;
  static constexpr uint32_t kRowTileBytes = kBlocks * kRowBlockBytes;
  static constexpr uint32_t kKvSlots = kBlocks == 1 ? 4 : 3;

  // Columns of dQ that a warpgroup computes: all of its rows, or its half of the columns.
  static constexpr int kDqColumns = kHeadDim == 128 ? 64 : kHeadDim;

  // Offsets in shared memory: of values and keys, queries, output gradients, dS and dQ.
  FOX_HOST_DEVICE static constexpr uint32_t QueryAt(uint32_t slot) {
    return kKvSlots * kKeyTileBytes + slot * kRowTileBytes;
  }
  FOX_HOST_DEVICE static constexpr uint32_t GradientAt(uint32_t slot) {
    return QueryAt(kStepSlots) + slot * kRowTileBytes;
  }

  // dS: a block of [kRows][64 keys] bf16 for each warpgroup, lines of 128 bytes.
  static constexpr uint32_t kDsAt = kKvSlots * kKeyTileBytes + 2 * kStepSlots * kRowTileBytes;
  static constexpr uint32_t kDsBlockBytes = kRows * 128;
  // dQ: blocks of [kRows][32] float32, lines of 128 bytes.
  static constexpr uint32_t kDqAt = kDsAt + kWarpgroups * kDsBlockBytes;
  static constexpr uint32_t kDqBlockBytes = kRows * 128;
  static constexpr uint32_t kDqBlocks = kHeadDim / 32;
  static constexpr uint32_t kTileBytes = kDqAt + kDqBlocks * kDqBlockBytes;
};

// A key tile of a kv head.
struct BackwardItem {
  int32_t tokens;  // from the tile's first to the sequence's end; 0: there is no more work
  int32_t batch, token, kv_head;
  int32_t tile;  // in the list
  int32_t page;  // its first, counted in its sequence
};

// kSecondPage: the rows do not see the key tile's first page.
enum StepFlags : int32_t { kDiagonal = 1, kLastOfHead = 2, kLastOfItem = 4, kSecondPage = 8 };
static_assert(kWarpgroupKeys == kVarlenPage, "a page is one warpgroup's");

// One step: kRows rows of one query head.
struct BackwardStep {
  float ref;      // log2(e) (c_ref of the rows - c before the key tile)
  int32_t flags;  // of StepFlags
  int32_t row;    // in gradients.dq: (head * max_tiles + tile) * 128 + first row
  int32_t turn;   // key tiles before this one in the fixed order, counted in steps
};

template <int kHeadDim>
struct BackwardShared {
  using Plan = BackwardPlan<kHeadDim>;

  uint8_t tiles[Plan::kTileBytes];  // 1024-byte aligned
  float lse[kStepSlots][Plan::kRows];
  float key_offset[kStepSlots][kVarlenTile];  // c_j - c before the tile
  float delta[kStepSlots][Plan::kRows];
  float row_sums[kBackwardWarps][Plan::kRows];  // of each warp's keys
  float row_sum[Plan::kRows];                   // of them all
  BackwardStep steps[kStepSlots];
  BackwardItem items[kItemSlots];
  BackwardStep adding;  // of the dQ in shared memory; row -1: there will be no more

  Mbarrier item_full[kItemSlots], item_empty[kItemSlots];
  Mbarrier kv_full[Plan::kKvSlots], kv_empty[Plan::kKvSlots];
  Mbarrier q_full[kStepSlots], q_empty[kStepSlots];
  Mbarrier do_full[kStepSlots], do_empty[kStepSlots];
  Mbarrier dq_full, dq_empty;
  Mbarrier raw;  // a tile that the loader has yet to clear past the sequence's end
};

struct BackwardArguments {
  CUtensorMap q_map, k_map, v_map, do_map, dq_map;
  VarlenState state;
  VarlenGradients gradients;
  VarlenView dk, dv;
  int q_heads, kv_heads;
  float scale, scale_log2;  // of q.k, and to log2 units
  bool deterministic;
};

}  // namespace fox::cuda
