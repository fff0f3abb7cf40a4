// KeySplits: how the walks of prefill attention over long contexts are split over keys, so that a
// short chunk's few tiles fill the device. Planned on the device for each layer (PlanKeySplits).
//
// A walk is that of one (query head, tile of rows) over its visible key/value tiles, 128 keys each.
// A split of it is the key/value tiles with the same index >> shift; number 0 holds the diagonal,
// the others follow to the left. The shift follows from the walks of the sequence's own rows of the
// step, so a row's bits depend neither on the batch nor on the device, as long as the workspace
// holds the splits of all sequences. Where it does not, the last walks stay whole.
#pragma once

#include <cstdint>

#include "kernels/core/host_device.h"

namespace fox::cuda {

// Sequences that bring more rows fill the device with whole walks.
inline constexpr int64_t kMostSplitRows = 4096;
// Eight key/value tiles at least, and twice as many until a sequence has about kManyKeySplits.
inline constexpr int kMinKeySplitShift = 3;
inline constexpr int kManyKeySplits = 768;
// Capacities: rows of partial results of all splits, and splits. One sequence needs at most 1.5
// splits of 128 rows for each of the many.
inline constexpr int64_t kMostPartialRows = int64_t{1} << 18;
inline constexpr int64_t kMostKeySplits = int64_t{1} << 14;
static_assert(kMostPartialRows >= 128 * 3 / 2 * kManyKeySplits);

// `tiles`: visible key/value tiles of all walks of a sequence.
FOX_HOST_DEVICE inline int KeySplitShift(int64_t tiles, int least_shift) {
  int shift = least_shift;
  while (tiles >> shift > kManyKeySplits) ++shift;
  return shift;
}

// Splits of a walk over key/value tiles [first, last]; one: it stays whole.
FOX_HOST_DEVICE inline int NumKeySplits(int first, int last, int shift) {
  return last - first + 1 < 2 << shift ? 1 : (last >> shift) - (first >> shift) + 1;
}

// How one walk is split. The partial result of row r in split i is row
// first_row + i * (rows of the tile) + r.
struct WalkSplits {
  int32_t shift;  // -1: it stays whole
  int32_t first_row;
};

struct KeySplit {
  int32_t tile, head;
  int32_t index;  // from 1 on: number 0 stands for the walk itself
};

struct SplitWalk {
  int32_t tile, head;
};

// Plain device pointers; CudaOps owns the memory.
struct KeySplits {
  int64_t max_rows = 0, max_splits = 0;  // capacities
  int least_shift = kMinKeySplitShift;
  WalkSplits* walks = nullptr;       // [q_heads, max_tiles]; null: nothing is split
  int32_t* tiles = nullptr;          // [max_tiles] those of sequences with few rows, ascending
  KeySplit* splits = nullptr;        // [max_splits]
  SplitWalk* split_walks = nullptr;  // [max_splits] in any order
  int32_t* num_splits = nullptr;     // [1]
  int32_t* num_split_walks = nullptr;
  int32_t* splits_first = nullptr;  // [1] 1: whole walks are short, so splits come before them
  float* out = nullptr;             // [max_rows, head_dim], relative to the maximum
  float* softmax = nullptr;         // [max_rows, 2]: maximum in log2 units, sum
};

}  // namespace fox::cuda
