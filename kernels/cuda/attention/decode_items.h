// Which work a block of decode attention does: its share of the step's items (step_work.h), walked
// item by item in rounds of two pages, of which each of its four warps takes half a page.
// Everything here is the same in all threads of a block, or of a warp where it says so. For
// decode.cu only.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/device/global_memory.h"
#include "kernels/cuda/device/warp.h"
#include "kernels/cuda/step_work.h"
#include "kernels/op_params.h"

namespace fox::cuda::decode {

inline constexpr int kWarps = 4;
inline constexpr int kThreads = kWarps * kWarp;
// What a warp takes at a time: half a page, one logit for each lane.
inline constexpr int kUnitKeys = 32;
inline constexpr int kUnitsPerPage = kPageTokens / kUnitKeys;
// What the warps of a block take at a time.
inline constexpr int kRoundPages = kWarps / kUnitsPerPage;

struct Decode {
  BatchView batch;
  AttentionParams params;
  PagedKv kv;
  StepWork work;
  int group;  // query heads of a kv head
  // Whether the kernel right before is AppendDecode, which starts this one when all before it and
  // the projection have ended (launch.h): what these do not write may then be read while they run.
  bool after_append_decode;
};

// One (sequence, query head) and its window.
struct Pair {
  int index;       // seq * q_heads + head
  int begin, end;  // its items
  int length;      // keys
  int first_live;  // page, or the first of the step's own window
  int group_head;  // among the query heads of its kv head
  int row;         // in the batch
  const int32_t* table;
  int64_t own;  // the place of its own page's gates, by page and query head of the group
};

// What AppendDecode writes of a pair's row: the gates and, spread over the lanes, q.
template <int kHeadDim>
struct Row {
  static constexpr int kWords = kHeadDim / 2;  // of two dims
  static constexpr int kLaneWords = (kWords + kWarp - 1) / kWarp;
  double base;  // the row's cumulative log gate is base + local
  float local;
  uint32_t q[kLaneWords];
};

// What a warp keeps of a pair in shared memory, which saves registers and waiting. Each warp has
// its own copies, of the pair at hand and of the next one, so no barrier is needed.
template <int kHeadDim>
struct KeptPair {
  Pair pair;
  double base;
  float local;
  alignas(16) float q[kHeadDim];
};

// Where in the block's items we are; the same in all threads.
struct Cursor {
  int slot;  // of the kept pair: 0 or 1
  int item;
  int round, round_end;  // pages [2 * round, 2 * round + 2) are looked at together
};

// Half a page; the same in all lanes of a warp. Where the window has none for the warp: no valid
// keys, and the first half of some page of the window, so that its first row may be read.
struct Unit {
  int32_t page;  // id
  int half;
  int valid;  // keys, counted from the first
  bool own;   // the page is the row's own, the one that AppendDecode writes
};

// The two bf16 of a word as float32; the low one is a single bf16, too.
__device__ inline float Low(uint32_t pair) { return __uint_as_float(pair << 16); }
__device__ inline float High(uint32_t pair) { return __uint_as_float(pair & 0xffff0000u); }

__host__ __device__ inline int NumPairs(const Decode& a) {
  return a.batch.num_seqs * a.kv.shape.q_heads;
}

__device__ inline const int32_t* ItemBegin(const Decode& a) {
  return a.work.item_begin + static_cast<int64_t>(a.params.layer) * (a.work.max_pairs + 1);
}

__device__ inline int NumPages(const Pair& pair) { return (pair.length - 1) / kPageTokens + 1; }

__device__ inline int64_t Summary(const Decode& a, int32_t page, const Pair& pair) {
  return static_cast<int64_t>(page) * a.group + pair.group_head;
}

__device__ inline const float* LocalGates(const Decode& a, int64_t summary) {
  return static_cast<const float*>(a.kv.local_gate) + summary * kPageTokens;
}

// All but what AppendDecode writes, and but the items.
__device__ inline Pair LoadPair(const Decode& a, int index) {
  const PagedKvShape& shape = a.kv.shape;
  const int seq = index / shape.q_heads, head = index % shape.q_heads;
  const int slot = LoadCoherent(a.batch.slot + seq);
  const int64_t position = LoadCoherent(a.batch.position + seq);
  const int64_t row = LoadCoherent(a.batch.row_begin + seq);
  const int64_t list =
      (static_cast<int64_t>(slot) * shape.layers + a.params.layer) * shape.kv_heads +
      head / a.group;
  Pair pair;
  pair.index = index;
  pair.length = static_cast<int>(position) + 1;
  pair.table = a.kv.page_table + list * shape.max_pages;
  pair.first_live =
      LoadCoherent(a.work.window != nullptr ? a.work.window + index : a.kv.first_live + list);
  const int32_t page = LoadCoherent(pair.table + NumPages(pair) - 1);
  pair.group_head = head % a.group;
  pair.row = static_cast<int>(row);
  pair.own = Summary(a, page, pair);
  return pair;
}

template <int kHeadDim>
__device__ Row<kHeadDim> LoadRow(const Decode& a, const Pair& pair) {
  using R = Row<kHeadDim>;
  const uint32_t* q = reinterpret_cast<const uint32_t*>(
      static_cast<const uint16_t*>(a.params.q.data) + pair.row * a.params.q.row_stride +
      pair.index % a.kv.shape.q_heads * kHeadDim);
  R row;
#pragma unroll
  for (int i = 0; i < R::kLaneWords; ++i) {
    row.q[i] = LoadCoherent(q + min(i * kWarp + Lane(), R::kWords - 1));
  }
  row.base = LoadCoherent(a.kv.c_base + pair.own);
  row.local = LoadCoherent(LocalGates(a, pair.own) + (pair.length - 1) % kPageTokens);
  return row;
}

template <int kHeadDim>
__device__ void Keep(const Pair& pair, const Row<kHeadDim>& row, KeptPair<kHeadDim>& kept) {
  using R = Row<kHeadDim>;
  __syncwarp();
#pragma unroll
  for (int i = 0; i < R::kLaneWords; ++i) {
    const int word = i * kWarp + Lane();
    if (word < R::kWords) {
      reinterpret_cast<float2*>(kept.q)[word] = {Low(row.q[i]), High(row.q[i])};
    }
  }
  if (Lane() == 0) {
    kept.pair = pair;
    kept.base = row.base;
    kept.local = row.local;
  }
  __syncwarp();
}

// Block b of n takes items [first, last): as many as the others, or one more. A few items go to the
// first blocks, which lie on different multiprocessors.
struct ItemRange {
  int first, last;
};

__device__ inline ItemRange ItemsOfBlock(int num_items) {
  const int n = static_cast<int>(gridDim.x), b = static_cast<int>(blockIdx.x);
  const int share = num_items / n, rest = num_items % n;
  const int first = b * share + min(b, rest);
  return {first, first + share + (b < rest ? 1 : 0)};
}

// The block's items, and the pair that owns the first: the last one that begins at or before it.
// The block's threads probe side by side, up to 128 pairs while the items are counted.
__device__ inline ItemRange FindItems(const Decode& a, Pair& pair) {
  const int32_t* item_begin = ItemBegin(a);
  int low = 0, count = NumPairs(a), stride = (count + kThreads - 1) / kThreads;
  int probe = static_cast<int>(threadIdx.x) * stride;
  const int num_items = LoadCoherent(item_begin + count);
  int probed = LoadCoherent(item_begin + min(probe, count));
  const ItemRange items = ItemsOfBlock(num_items);
  if (items.first == items.last) return items;
  for (;;) {
    const int below = __syncthreads_count(probe < count && probed <= items.first);
    low += (below - 1) * stride;
    count = min(stride, count - (below - 1) * stride);
    if (count == 1) break;
    stride = (count + kThreads - 1) / kThreads;
    probe = static_cast<int>(threadIdx.x) * stride;
    probed = LoadCoherent(item_begin + low + min(probe, count));
  }
  const int bound = LoadCoherent(item_begin + low + Lane() % 2);
  pair = LoadPair(a, low);
  // Through a shuffle, so that the pages' loads, later, need not be waited for to use these.
  pair.begin = __shfl_sync(kAllLanes, bound, 0);
  pair.end = __shfl_sync(kAllLanes, bound, 1);
  return items;
}

// The next pair that owns items, `item` being its first. Lanes look at many pairs at once, because
// sequences of several rows own none.
__device__ inline Pair NextPair(const Decode& a, int index, int item) {
  const int32_t* item_begin = ItemBegin(a);
  for (;; index += kWarp) {
    const int end = LoadCoherent(item_begin + min(index + 2 + Lane(), NumPairs(a)));
    const unsigned owners = __ballot_sync(kAllLanes, end > item);
    if (owners == 0) continue;
    const int lane = __ffs(static_cast<int>(owners)) - 1;
    Pair pair = LoadPair(a, index + 1 + lane);
    pair.begin = item;
    pair.end = __shfl_sync(kAllLanes, end, lane);
    return pair;
  }
}

__device__ inline void EnterItem(const Decode& a, const Pair& pair, Cursor& cursor) {
  const int size = a.work.item_pages;
  const int base = (pair.first_live / size + cursor.item - pair.begin) * size;
  cursor.round = max(base, pair.first_live) / kRoundPages;
  cursor.round_end = (min(base + size, NumPages(pair)) + kRoundPages - 1) / kRoundPages;
}

// False when nothing is left before item `last`; the cursor is then worth nothing but its slot.
template <int kHeadDim>
__device__ bool Advance(const Decode& a, int last, KeptPair<kHeadDim>* kept, Cursor& cursor) {
  if (++cursor.round < cursor.round_end) return true;
  if (++cursor.item == last) return false;
  const Pair& pair = kept[cursor.slot].pair;
  if (cursor.item == pair.end) {
    const Pair next = NextPair(a, pair.index, cursor.item);
    cursor.slot ^= 1;
    Keep(next, LoadRow<kHeadDim>(a, next), kept[cursor.slot]);
  }
  EnterItem(a, kept[cursor.slot].pair, cursor);
  return true;
}

// The warp's unit of a round; without valid keys if `exists` is false.
__device__ inline Unit UnitAt(const Pair& pair, int round, bool exists) {
  const int page = round * kRoundPages + Warp() / kUnitsPerPage;
  const int half = Warp() % kUnitsPerPage;
  const int valid = min(kUnitKeys, pair.length - page * kPageTokens - half * kUnitKeys);
  const bool inside = exists && page >= pair.first_live && valid > 0;
  const int last = NumPages(pair) - 1, at = min(max(page, pair.first_live), last);
  return {LoadCoherent(pair.table + at), inside ? half : 0, inside ? valid : 0, at == last};
}

}  // namespace fox::cuda::decode
