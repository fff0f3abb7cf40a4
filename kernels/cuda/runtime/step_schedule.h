// StepSchedule: the device's own plan of one step, made by BeginStep at the step's beginning and
// read by the kernels after it; so that nothing about lengths and windows has to come from the
// host. Plain device pointers; CudaOps owns the memory.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "kernels/core/host_device.h"
#include "kernels/cuda/runtime/key_splits.h"
#include "kernels/interface/batch_view.h"
#include "kernels/paging/lost_mass.h"
#include "kernels/paging/paged_kv.h"

namespace fox::cuda {

// Consecutive rows of one sequence.
struct RowBlock {
  int32_t seq;        // in the batch
  int32_t slot;       // never -1
  int32_t first_row;  // in the batch
  int32_t count;      // rows, at least one
  int32_t position;   // absolute, of the first row
};

// The most row blocks that a batch can fall into: r rows of a sequence touch at most
// floor((r + 62) / 64) + 1 pages, and not more than r.
constexpr int64_t MaxRowBlocks(int64_t num_rows, int64_t num_seqs) {
  const int64_t by_pages = (num_rows + 62 * num_seqs) / kPageTokens + num_seqs;
  return num_rows < by_pages ? num_rows : by_pages;
}

// The most row blocks that a batch's prefill rows can fall into. The blocks of prefill rows are the
// last ones of StepSchedule::blocks, because decode rows come first.
inline int64_t MaxPrefillBlocks(const BatchView& batch) {
  return MaxRowBlocks(batch.num_rows - batch.num_decodes, batch.num_seqs - batch.num_decodes);
}

// Rows of an attention tile: one sequence's rows with the same position / 128.
inline constexpr int kTileRows = 128;
static_assert(kTileRows % kPageTokens == 0);

// A KV split of decode attention is 1 << shift neighbouring pages of a window, counted from the
// window's first page; the window's last split has the remaining pages. SplitShift depends on the
// window's length alone, so that a row's bits do not depend on the batch or on the server's limits:
// a split has four pages, eight from kLongWindowPages on, and then twice as many until a window has
// at most kManySplits.
inline constexpr int kMinSplitShift = 2;
inline constexpr int kLongWindowPages = 513;
inline constexpr int kManySplits = 512;

FOX_HOST_DEVICE inline int SplitShift(int window_pages) {
  const unsigned excess = static_cast<unsigned>(window_pages - 1) / kManySplits;
#if defined(__CUDA_ARCH__)
  const int shift = 32 - __clz(static_cast<int>(excess));
#else
  const int shift = static_cast<int>(std::bit_width(excess));
#endif
  const int least = kMinSplitShift + (window_pages >= kLongWindowPages ? 1 : 0);
  return shift > least ? shift : least;
}

// Splits of the window of pages [first, last].
FOX_HOST_DEVICE inline int NumSplits(int first, int last) {
  return ((last - first) >> SplitShift(last - first + 1)) + 1;
}
// The page at which a split begins, where split number `begin` begins at the window's page `first`.
FOX_HOST_DEVICE inline int SplitPage(int first, int shift, int split, int begin) {
  return first + ((split - begin) << shift);
}

// The number of query heads of a kv head that decode attention computes together, so that their
// pages are read once: a group is divided into as few parts of at most kMaxHeadsTogether heads as
// possible, equal except for the last. 1: each head by itself.
inline constexpr int kMaxHeadsTogether = 8;
FOX_HOST_DEVICE inline int HeadsTogether(const PagedKvShape& shape) {
  if (shape.head_dim < 64) return 1;
  const int parts = (shape.group() + kMaxHeadsTogether - 1) / kMaxHeadsTogether;
  return (shape.group() + parts - 1) / parts;
}

// A partial result of decode attention: maximum, sum, two unused, out[head_dim]. A multiple of 16
// bytes, which are taken at a time.
inline constexpr int kPartialHeader = 4;
FOX_HOST_DEVICE inline constexpr int PartialFloats(int head_dim) {
  return kPartialHeader + head_dim;
}

// The most splits that a layer's decoding windows can have. A small pool does not reduce them:
// windows of sequences that share pages add up to more than it holds.
inline int64_t MaxDecodeSplits(int64_t max_seqs, const PagedKvShape& shape) {
  const int64_t pages = shape.max_pages;
  const int64_t short_window = pages < kLongWindowPages ? pages : kLongWindowPages - 1;
  const int64_t long_window = (pages >> (kMinSplitShift + 1)) + 1;
  const int64_t splits =
      std::max((short_window >> kMinSplitShift) + 1, std::min(long_window, int64_t{kManySplits}));
  const int64_t parts = (shape.group() - 1) / HeadsTogether(shape) + 1;
  return max_seqs * shape.kv_heads * parts * splits;
}

// A cluster of decode attention, which takes a whole window: its blocks, and splits that a block
// takes at a time.
inline constexpr int kClusterBlocks = 8;
inline constexpr int kClusterBlockSplits = 2;

// One (sequence, query head) whose row decode attention computes, or the heads that are taken
// together from it on, and its window.
struct alignas(16) SeqHead {
  int32_t index;             // seq * q_heads + head
  int32_t place;             // among the layer's seq_heads
  int32_t begin, end;        // its splits
  int32_t length;            // keys
  int32_t first_live;        // page
  int32_t list;              // of pages: PagedKv::ListIndex
  int32_t row;               // in the batch
  int32_t own;               // id of the row's own page
  int16_t head, group_head;  // the latter among the query heads of its kv head
};
static_assert(sizeof(SeqHead) % 16 == 0);  // copied by words of 16 bytes

FOX_HOST_DEVICE inline int LastPage(const SeqHead& seq_head) {
  return (seq_head.length - 1) / kPageTokens;
}

// Everything that a block of decode attention needs before it can request its first keys.
inline constexpr int kStartPages = kClusterBlockSplits << kMinSplitShift;
struct alignas(16) BlockStart {
  // Its splits; by clusters its first one and the window's end. Equal: none.
  int32_t first, last;
  int32_t first_page;          // that it visits
  SeqHead seq_head;            // that owns the first split
  int32_t pages[kStartPages];  // ids, from first_page on; the last page stands in past the end
};
static_assert(offsetof(BlockStart, pages) % 16 == 0 && kStartPages <= 32);

// Copies in bf16, for prefill attention, of pages in 8 bits: the pages of some lists, which are
// numbered by sequence from first_seq on, then by kv head. Page n of list l lies at (l - first) *
// pages + n.
struct WidePages {
  void* keys = nullptr;    // [capacity, 64, head_dim] bf16
  void* values = nullptr;  // likewise
  int64_t capacity = 0;
  int pages = 0;  // room for each list; 0: pages are bf16 in the pool
  int first_seq = 0, first = 0, end = 0;

  FOX_HOST_DEVICE int ListOf(int seq, int kv_head, int kv_heads) const {
    return (seq - first_seq) * kv_heads + kv_head;
  }
  FOX_HOST_DEVICE bool Covers(int seq, int kv_head, int kv_heads) const {
    const int list = ListOf(seq, kv_head, kv_heads);
    return pages == 0 || (list >= first && list < end);
  }
  // Place of page 0 of a list; -1: its pages are read from the pool.
  FOX_HOST_DEVICE int PlaceOf(int seq, int kv_head, int kv_heads) const {
    return pages == 0 ? -1 : (ListOf(seq, kv_head, kv_heads) - first) * pages;
  }
};

// Memory of a WidePages: all lists' pages if they fit into `most_bytes`, and at least one list's.
inline int64_t WidePageBytes(const PagedKvShape& shape) {
  return int64_t{2 * kPageTokens * 2} * shape.head_dim;
}
inline int64_t WidePageCapacity(const PagedKvShape& shape, int64_t max_seqs, int64_t most_bytes) {
  if (shape.dtype != DType::kE4M3) return 0;
  const int64_t of_list = shape.max_pages;
  return std::min(max_seqs * shape.kv_heads * of_list,
                  std::max(of_list, most_bytes / WidePageBytes(shape)));
}

// Parts in which the losses of a block's rows are added up.
inline constexpr int kLostMassParts = 4;

struct StepSchedule {
  int max_blocks = 0, max_tiles = 0, max_splits = 0;  // capacities

  // Rows of all sequences, cut at page ends; ascending. A batch in which every sequence has one
  // row has exactly one block per (unpadded) sequence.
  RowBlock* blocks = nullptr;     // [max_blocks]
  int32_t* num_blocks = nullptr;  // [1]
  // Rows of the sequences with more than one row, cut at multiples of kTileRows; ascending by
  // sequence, then position.
  RowBlock* tiles = nullptr;     // [max_tiles]
  int32_t* num_tiles = nullptr;  // [1]
  // First page that tile t of query head h may see: [q_heads, max_tiles], of the current layer.
  int32_t* boundary = nullptr;
  int32_t* tile_counter = nullptr;  // [1] dynamic scheduling; zeroed by PruneBoundaries
  KeySplits key_splits;             // of the tiles' KV loops, of the current layer
  WidePages wide;

  // Decode attention: a layer's seq_heads that own splits, NumSplits of their window each,
  // ascending. Only sequences with exactly one row have them; the first of several heads that are
  // computed together stands for all, its window beginning at their least first page.
  SeqHead* seq_heads = nullptr;  // [layers, max_seq_heads]
  int max_seq_heads = 0;
  // Decode attention's blocks. By clusters: kClusterBlocks of each seq_head, and `seq_heads` is not
  // written; else each has as many splits as the others, or one more.
  BlockStart* block_starts = nullptr;  // [layers, decode_blocks]
  int decode_blocks = 0;
  bool by_clusters = false;
  // [max_splits, HeadsTogether, PartialFloats(head_dim)]; all bits are set between launches, unless
  // heads are taken together.
  float* partial = nullptr;
  // For heads that are computed together: [sequences, q_heads] splits done, zero between launches.
  int32_t* arrival_counter = nullptr;

  // Page sums on the way between two kernels of Append: [max_blocks, q_heads, head_dim + 3], a
  // record being {log gate of the block's rows, decayed count S, log M, decayed keys
  // N[head_dim]}; all but the first are of the whole page alone, relative to its end, and there if
  // it is full.
  double* page_sums = nullptr;

  // For LostMass, [layers, max_rows, q_heads, 2], or null: of a row of a head the log of its
  // denominator, relative to the row's own gate in decode rows and to the gate of its tile's first
  // row in others, and the scale of its output norm, sqrt(head_dim) / |o|.
  float* row_sums = nullptr;
  int64_t max_rows = 0;
  LostMass* lost_mass_parts = nullptr;  // [max_blocks, kLostMassParts]
  // PagedKv::evicted_log_mass just before the evictions of each page end of the step:
  // [PageEndIndex, layers, q_heads].
  double* evicted_before = nullptr;

  // A place for the page end at a row of the batch. Places ascend, and their number is at most
  // max_rows / kPageTokens + max_seqs.
  FOX_HOST_DEVICE static int64_t PageEndIndex(int64_t row, int seq) {
    return row / kPageTokens + seq;
  }

  // Of a layer: [max_rows, q_heads, 2], or null.
  FOX_HOST_DEVICE float* RowSums(int layer, int q_heads) const {
    return row_sums == nullptr ? nullptr : row_sums + layer * max_rows * q_heads * 2;
  }
  // Index into `boundary` and KeySplits::partial_rows.
  FOX_HOST_DEVICE int64_t HeadTile(int head, int tile) const {
    return static_cast<int64_t>(head) * max_tiles + tile;
  }
  FOX_HOST_DEVICE SeqHead* SeqHeads(int layer) const {
    return seq_heads + static_cast<int64_t>(layer) * max_seq_heads;
  }
  FOX_HOST_DEVICE BlockStart* BlockStarts(int layer) const {
    return block_starts + static_cast<int64_t>(layer) * decode_blocks;
  }
};

}  // namespace fox::cuda
