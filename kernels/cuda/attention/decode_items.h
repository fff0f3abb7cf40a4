// Which work a block of decode attention does: its share of the step's items (step_work.h), walked
// item by item in rounds of two pages, of which each of its four warps takes half a page.
// Everything here is the same in all threads of a block, or of a warp where it says so. For
// decode.cu only.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/step_work.h"
#include "kernels/op_params.h"

namespace fox::cuda::decode {

inline constexpr int kWarp = 32;
inline constexpr int kWarps = 4;
inline constexpr int kThreads = kWarps * kWarp;
inline constexpr unsigned kAllLanes = 0xffffffffu;
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
};

// One (sequence, query head) and its window.
struct Pair {
  int index;       // seq * q_heads + head
  int begin, end;  // its items
  int length;      // keys
  int first_live;  // page
  int group_head;  // among the query heads of its kv head
  const int32_t* table;
  double base;  // the row's cumulative log gate is base + local
  float local;
};

// What a warp keeps of a pair in shared memory, which saves registers and waiting. Each warp has
// its own copies, of the pair at hand and of the next one, so no barrier is needed.
template <int kHeadDim>
struct KeptPair {
  Pair pair;
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
};

__device__ inline int Lane() { return static_cast<int>(threadIdx.x) % kWarp; }
__device__ inline int Warp() { return static_cast<int>(threadIdx.x) / kWarp; }

// The two bf16 of a word as float32; the low one is a single bf16, too.
__device__ inline float Low(uint32_t pair) { return __uint_as_float(pair << 16); }
__device__ inline float High(uint32_t pair) { return __uint_as_float(pair & 0xffff0000u); }

__device__ inline int NumPairs(const Decode& a) { return a.batch.num_seqs * a.kv.shape.q_heads; }

__device__ inline const int32_t* ItemBegin(const Decode& a) {
  return a.work.item_begin + static_cast<int64_t>(a.params.layer) * (a.work.max_pairs + 1);
}

__device__ inline int NumPages(const Pair& pair) { return (pair.length - 1) / kPageTokens + 1; }

__device__ inline int64_t Summary(const Decode& a, int32_t page, const Pair& pair) {
  return static_cast<int64_t>(page) * a.group + pair.group_head;
}

__device__ inline float LocalGate(const Decode& a, int64_t summary, int token) {
  return static_cast<const float*>(a.kv.local_gate)[summary * kPageTokens + token];
}

__device__ inline Pair LoadPair(const Decode& a, int index, int begin, int end) {
  const PagedKvShape& shape = a.kv.shape;
  const int seq = index / shape.q_heads, head = index % shape.q_heads;
  const int64_t list =
      (static_cast<int64_t>(a.batch.slot[seq]) * shape.layers + a.params.layer) * shape.kv_heads +
      head / a.group;
  Pair pair;
  pair.index = index;
  pair.begin = begin;
  pair.end = end;
  pair.length = static_cast<int>(a.batch.position[seq]) + 1;
  pair.first_live = a.kv.first_live[list];
  pair.group_head = head % a.group;
  pair.table = a.kv.page_table + list * shape.max_pages;
  const int64_t summary = Summary(a, pair.table[NumPages(pair) - 1], pair);
  pair.base = a.kv.c_base[summary];
  pair.local = LocalGate(a, summary, (pair.length - 1) % kPageTokens);
  return pair;
}

template <int kHeadDim>
__device__ void Keep(const Decode& a, const Pair& pair, KeptPair<kHeadDim>& kept) {
  const int64_t row = a.batch.row_begin[pair.index / a.kv.shape.q_heads];
  const uint16_t* q = static_cast<const uint16_t*>(a.params.q.data) + row * a.params.q.row_stride +
                      pair.index % a.kv.shape.q_heads * kHeadDim;
  __syncwarp();
  for (int m = Lane(); m < kHeadDim; m += kWarp) kept.q[m] = Low(q[m]);
  if (Lane() == 0) kept.pair = pair;
  __syncwarp();
}

// The pair that owns `item`: the last one that begins at or before it. The block's threads probe
// side by side, so up to 128 * 128 pairs take two reads one after the other.
__device__ inline Pair FirstPair(const Decode& a, int item) {
  const int32_t* item_begin = ItemBegin(a);
  int low = 0, count = NumPairs(a);
  while (count > 1) {
    const int stride = (count + kThreads - 1) / kThreads;
    const int probe = static_cast<int>(threadIdx.x) * stride;
    const int below = __syncthreads_count(probe < count && item_begin[low + probe] <= item);
    low += (below - 1) * stride;
    count = min(stride, count - (below - 1) * stride);
  }
  // Through a shuffle, so that the pages' loads, later, need not be waited for to use these.
  const int bound = item_begin[low + Lane() % 2];
  const int begin = __shfl_sync(kAllLanes, bound, 0), end = __shfl_sync(kAllLanes, bound, 1);
  return LoadPair(a, low, begin, end);
}

// The next pair that owns items, `item` being its first. Lanes look at many pairs at once, because
// sequences of several rows own none.
__device__ inline Pair NextPair(const Decode& a, int index, int item) {
  const int32_t* item_begin = ItemBegin(a);
  for (;; index += kWarp) {
    const int end = item_begin[min(index + 2 + Lane(), NumPairs(a))];
    const unsigned owners = __ballot_sync(kAllLanes, end > item);
    if (owners == 0) continue;
    const int lane = __ffs(static_cast<int>(owners)) - 1;
    return LoadPair(a, index + 1 + lane, item, __shfl_sync(kAllLanes, end, lane));
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
    Keep(a, next, kept[cursor.slot]);
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
  const int32_t id = pair.table[min(max(page, pair.first_live), NumPages(pair) - 1)];
  return {id, inside ? half : 0, inside ? valid : 0};
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

}  // namespace fox::cuda::decode
