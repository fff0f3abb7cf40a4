// KeySplits: how long walks of prefill attention are split over keys, so that a short chunk's few
// tiles fill the device.
//
// A walk is that of one (query head, tile of rows) over its visible key/value tiles, 128 keys each.
// A split of it is the key/value tiles with the same index >> shift; number 0 holds the diagonal,
// the others follow to the left. Whether there are any, and the shift, follow from the walk's own
// place and length alone, so a row's bits depend neither on the batch, nor on where chunks end, nor
// on what follows in the prompt.
//
// Each split has partial results of its own, and those are merged from right to left, one after the
// other (MergedRow). Where that is done does not matter to the bits: as many walks as there is room
// for run their splits side by side, and MergeKeySplits merges those; all others are *chained*,
// their splits run one after the other in one thread block, which merges as it goes. A short chunk
// so fills the device, and a long one, whose chains come first, has an even end. PlanKeySplits says
// for each layer which walks find room.
#pragma once

#include <cstdint>

#include "kernels/core/host_device.h"

namespace fox::cuda {

// 32 key/value tiles, some 40 us, and twice as many until a walk has about kManyKeySplits.
inline constexpr int kMinKeySplitShift = 5;
inline constexpr int kManyKeySplits = 16;
// Tiles of rows before this one, of 32,768 tokens, have whole walks: chained ones take some 10%
// longer, and a short chunk there has little to walk.
inline constexpr int kFirstSplitTile = 256;
inline constexpr int kMostSplitsOfWalk = kManyKeySplits + 2;  // the edges are absolute
// Capacities: rows of partial results of splits that run side by side, and such splits. What does
// not fit is chained.
inline constexpr int64_t kMostPartialRows = int64_t{1} << 18;
inline constexpr int64_t kMostKeySplits = int64_t{1} << 14;
// Thread blocks that may chain, a tile's rows each: a Hopper has at most 144 multiprocessors.
inline constexpr int kMostChains = 144;
inline constexpr int64_t kChainRows = int64_t{kMostChains} * 128;

// Of a walk over key/value tiles [first, last].
FOX_HOST_DEVICE inline int KeySplitShift(int first, int last, int least_shift) {
  int shift = least_shift;
  while ((last - first + 1) >> shift > kManyKeySplits) ++shift;
  return shift;
}

// Its splits; one: it is too short, or its rows lie before `first_split_tile`, and it stays whole.
FOX_HOST_DEVICE inline int NumKeySplits(int first, int last, int least_shift,
                                        int first_split_tile) {
  if (last < first_split_tile) return 1;
  const int shift = KeySplitShift(first, last, least_shift);
  return last - first + 1 < 2 << shift ? 1 : (last >> shift) - (first >> shift) + 1;
}

// The key/value tiles of split `index` of a walk that has several.
struct KeyTileRange {
  int first, last;
};

FOX_HOST_DEVICE inline KeyTileRange TilesOfSplit(int first, int last, int least_shift, int index) {
  const int shift = KeySplitShift(first, last, least_shift);
  const int group = (last >> shift) - index;
  const int begin = group << shift, end = (group + 1) << shift;
  return {begin > first ? begin : first, end - 1 < last ? end - 1 : last};
}

struct KeySplit {
  int32_t tile, head;
  int32_t index;  // from 1 on: number 0 stands for the walk itself
};

struct SplitWalk {
  int32_t tile, head;
  int32_t splits, first_row;  // of its partial results
};

// Plain device pointers; CudaOps owns the memory.
struct KeySplits {
  int64_t max_rows = 0, max_splits = 0;  // capacities
  int least_shift = kMinKeySplitShift;
  int first_split_tile = kFirstSplitTile;
  // [q_heads, max_tiles] first row of the partial results of a walk whose splits run side by side:
  // row r of split i is that + i * (rows of the tile) + r. -1: there are none. Null: nowhere.
  int32_t* walk_rows = nullptr;
  KeySplit* splits = nullptr;        // [max_splits]
  SplitWalk* split_walks = nullptr;  // [max_splits] in any order
  int32_t* num_splits = nullptr;     // [1]
  int32_t* num_split_walks = nullptr;
  int32_t* splits_first = nullptr;  // [1] 1: other walks are short, so splits come before them
  // [kChainRows + max_rows, head_dim], relative to the maximum; the first rows are the chains', 128
  // for each thread block. Null: walks of all lengths stay whole, which no backend may have where
  // some are long enough.
  float* out = nullptr;
  float* softmax = nullptr;  // [kChainRows + max_rows, 2]: maximum in log2 units, sum
  float* stop_at = nullptr;  // [kChainRows + max_rows] log2 of both with which nothing is needed
                             // left of the split
};

}  // namespace fox::cuda
