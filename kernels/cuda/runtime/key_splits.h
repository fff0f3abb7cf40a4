// KeySplits: long KV loops of prefill attention are split over keys, so that a short chunk's few
// tiles fill the device.
//
// A head tile is one (query head, tile of rows); its KV loop runs over its visible key/value tiles,
// 128 keys each. A split is the key/value tiles with the same index >> shift; number 0 holds the
// diagonal, the others follow to the left. Whether there are any, and the shift, depend only on the
// head tile's place and its loop's length, so a row's bits depend neither on the batch, nor on
// where chunks end, nor on later tokens of the prompt.
//
// Each split has partial results, which are merged from right to left, one after the other
// (MergedRow). Where they are merged does not change the bits: as many head tiles as fit run their
// splits in parallel, and MergeKeySplits merges those; all others run theirs serially in one thread
// block, which merges as it goes. So a short chunk fills the device, and a long one, whose serial
// splits come first, has an even end. PlanKeySplits decides for each launch which head tiles fit.
#pragma once

#include <cstdint>

#include "kernels/core/host_device.h"

namespace fox::cuda {

// 32 key/value tiles, some 40 us, doubled until a loop has about kManyKeySplits.
inline constexpr int kMinKeySplitShift = 5;
inline constexpr int kManyKeySplits = 16;
// Tiles of rows before this one (32,768 tokens) are not split: serial splits take some 10% longer,
// and a short chunk there has short loops.
inline constexpr int kFirstSplitTile = 256;
inline constexpr int kMaxSplitsPerTile = kManyKeySplits + 2;  // the edges are absolute
// Capacities: rows of partial results of parallel splits, and such splits. The rest runs serially.
inline constexpr int64_t kMaxPartialRows = int64_t{1} << 18;
inline constexpr int64_t kMaxKeySplits = int64_t{1} << 14;
// Thread blocks that may run serial splits, a tile's rows each: a Hopper has at most 144
// multiprocessors.
inline constexpr int kMaxSerialBlocks = 144;
inline constexpr int64_t kSerialRows = int64_t{kMaxSerialBlocks} * 128;
static_assert(kSerialRows + kMaxPartialRows <= INT32_MAX);  // rows are int32

// For a loop over key/value tiles [first, last].
FOX_HOST_DEVICE inline int KeySplitShift(int first, int last, int least_shift) {
  int shift = least_shift;
  while ((last - first + 1) >> shift > kManyKeySplits) ++shift;
  return shift;
}

// Its number of splits; 1 if it is too short, or its rows are before `first_split_tile`.
FOX_HOST_DEVICE inline int NumKeySplits(int first, int last, int least_shift,
                                        int first_split_tile) {
  if (last < first_split_tile) return 1;
  const int shift = KeySplitShift(first, last, least_shift);
  return last - first + 1 < 2 << shift ? 1 : (last >> shift) - (first >> shift) + 1;
}

// The key/value tiles of split `index` of a loop that has several.
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
  int32_t index;  // from 1 on: number 0 is the head tile itself
};

struct SplitHeadTile {
  int32_t tile, head;
  int32_t splits, first_row;  // of its partial results
};

// Plain device pointers; CudaOps owns the memory.
struct KeySplits {
  int64_t max_rows = 0, max_splits = 0;  // capacities
  int least_shift = kMinKeySplitShift;
  int first_split_tile = kFirstSplitTile;
  // [q_heads, max_tiles] first row of the partial results of a head tile with parallel splits: row
  // r of split i is that + i * (rows of the tile) + r. -1: none. Null: no parallel splits at all.
  int32_t* partial_rows = nullptr;
  KeySplit* splits = nullptr;            // [max_splits]
  SplitHeadTile* split_tiles = nullptr;  // [max_splits] in any order
  int32_t* num_splits = nullptr;         // [1]
  int32_t* num_split_tiles = nullptr;
  int32_t* splits_first = nullptr;  // [1] 1: other loops are short, so splits come before them
  // [kSerialRows + max_rows, head_dim], relative to the maximum; the first rows are for serial
  // splits, 128 for each thread block. Null: nothing is split, which is allowed only if no loop is
  // long enough.
  float* out = nullptr;
  float* softmax = nullptr;  // [kSerialRows + max_rows, 2]: maximum in log2 units, sum
  float* stop_at = nullptr;  // [kSerialRows + max_rows] log2 of both with which no key left of
                             // the split is needed
};

}  // namespace fox::cuda
