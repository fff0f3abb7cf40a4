// The work of a block of decode attention: its share of the step's splits (step_schedule.h), split
// by split in iterations of two pages, half a page for each of its four warps. Everything here is
// the same in all threads of a block, or of a warp where it says so.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/cuda/attention/decode/output.cuh"
#include "kernels/cuda/primitives/warp.cuh"
#include "kernels/cuda/ptx/copy_async.cuh"
#include "kernels/cuda/ptx/global_memory.cuh"
#include "kernels/cuda/runtime/step_schedule.h"
#include "kernels/interface/attention_params.h"
#include "kernels/interface/batch_view.h"

namespace fox::cuda::decode {

inline constexpr int kWarps = 4;
inline constexpr int kThreads = kWarps * kWarp;
// A warp's unit of work: half a page, one logit per lane.
inline constexpr int kHalfPageKeys = 32;
inline constexpr int kHalvesPerPage = kPageTokens / kHalfPageKeys;
// A block's unit of work.
inline constexpr int kIterationPages = kWarps / kHalvesPerPage;
static_assert((1 << kMinSplitShift) % kIterationPages == 0);

struct Decode {
  BatchView batch;
  AttentionParams params;
  OutputTransformArguments transform;  // params.transform
  PagedKv kv;
  StepSchedule schedule;
  int group;         // query heads of a kv head
  int together;      // HeadsTogether: of these that a seq_head stands for
  bool reads_early;  // as in decode.h
};

// Output of AppendDecode for a seq_head's row: the gates and, spread over the lanes, q; and the
// factors of its output.
template <int kHeadDim>
struct Row {
  double base;  // the row's cumulative log gate is base + local
  float local;
  uint32_t q[LaneWords<kHeadDim>::kCount];
  OutputFactors<kHeadDim> factors;
};

// A warp's copy of a seq_head in shared memory, which saves registers and waiting. Each warp has
// its own copies, of the current seq_head and of the next one, so no barrier is needed.
template <int kHeadDim>
struct KeptSeqHead {
  SeqHead seq_head;
  double base;
  float local, sink;
  alignas(16) float q[kHeadDim];
  float2 norm[kHeadDim / 2];  // OutputFactors, as the sink
  uint32_t gate[kHeadDim / 2];

  // Stores the row of `seq_head`, by the warp.
  __device__ void Take(const Row<kHeadDim>& row);
  __device__ void Load(const Decode& a);
  __device__ OutputFactors<kHeadDim> Factors() const;
};

// The position in the block's splits; the same in all threads.
struct Cursor {
  int slot;  // of the kept seq_head: 0 or 1
  int split;
  int iteration, iteration_end;  // of the window's pages 2 * iteration and 2 * iteration + 1
};

// Half a page; the same in all lanes of a warp. If the window has none for the warp: no valid keys,
// and the first half of some page of the window, whose first row can be read.
struct HalfPage {
  int32_t page;  // id
  int half;
  int valid;  // keys, counted from the first
  bool own;   // the page is the row's own page, which AppendDecode writes
};

__host__ __device__ inline int NumSeqHeads(const Decode& a) {
  return a.batch.num_seqs * a.kv.shape.q_heads;
}

__device__ inline int NumPages(const SeqHead& seq_head) { return LastPage(seq_head) + 1; }

__device__ inline int64_t Summary(const Decode& a, int32_t page, const SeqHead& seq_head) {
  return static_cast<int64_t>(page) * a.group + seq_head.group_head;
}

// The number of query heads computed together from `group_head` on.
__device__ inline int NumHeads(const Decode& a, int group_head) {
  return min(a.together, a.group - group_head);
}

template <int kHeadDim>
__device__ Row<kHeadDim> LoadRow(const Decode& a, const SeqHead& seq_head) {
  using W = LaneWords<kHeadDim>;
  const uint32_t* q = reinterpret_cast<const uint32_t*>(
      static_cast<const uint16_t*>(a.params.q.data) + seq_head.row * a.params.q.row_stride +
      seq_head.head * kHeadDim);
  const int64_t own = Summary(a, seq_head.own, seq_head);
  Row<kHeadDim> row;
#pragma unroll
  for (int i = 0; i < W::kCount; ++i) row.q[i] = LoadCoherent(q + W::At(i));
  row.base = LoadCoherent(a.kv.page_cum_log_f + own);
  row.local = LoadCoherent(a.kv.LogFOffsets<float>(own) + (seq_head.length - 1) % kPageTokens);
  row.factors.Load(a.transform, seq_head.row, seq_head.head);
  return row;
}

template <int kHeadDim>
__device__ void KeptSeqHead<kHeadDim>::Take(const Row<kHeadDim>& row) {
  using W = LaneWords<kHeadDim>;
  __syncwarp();
#pragma unroll
  for (int i = 0; i < W::kCount; ++i) {
    const int word = i * kWarp + Lane();
    if (word >= W::kWords) break;
    reinterpret_cast<float2*>(q)[word] = {Low(row.q[i]), High(row.q[i])};
    norm[word] = row.factors.norm[i];
    gate[word] = row.factors.gate[i];
  }
  if (Lane() == 0) {
    base = row.base;
    local = row.local;
    sink = row.factors.sink;
  }
  __syncwarp();
}

template <int kHeadDim>
__device__ void KeptSeqHead<kHeadDim>::Load(const Decode& a) {
  Take(LoadRow<kHeadDim>(a, seq_head));
}

template <int kHeadDim>
__device__ OutputFactors<kHeadDim> KeptSeqHead<kHeadDim>::Factors() const {
  using W = LaneWords<kHeadDim>;
  OutputFactors<kHeadDim> factors;
  factors.sink = sink;
#pragma unroll
  for (int i = 0; i < W::kCount; ++i) {
    factors.norm[i] = norm[W::At(i)];
    factors.gate[i] = gate[W::At(i)];
  }
  return factors;
}

// The block's start, as planned by BeginStep.
struct Start {
  int first, last;  // its splits
  SeqHead seq_head;
  int first_page;
  int32_t page;  // id of page first_page + lane % kStartPages
};

__device__ inline Start LoadStart(const Decode& a) {
  const BlockStart* planned = a.schedule.BlockStarts(a.params.layer) + blockIdx.x;
  // In parallel: the only loads that are waited for before the keys.
  constexpr int kWords = offsetof(BlockStart, pages) / sizeof(uint4);
  uint4 words[kWords];
#pragma unroll
  for (int i = 0; i < kWords; ++i) {
    words[i] = LoadCoherent(reinterpret_cast<const uint4*>(planned) + i);
  }
  Start start;
  start.page = LoadCoherent(planned->pages + Lane() % kStartPages);
  BlockStart known;
  memcpy(&known, words, sizeof(words));
  start.first = known.first;
  start.last = known.last;
  start.first_page = known.first_page;
  start.seq_head = known.seq_head;
  return start;
}

// If the block has splits of the seq_head after slot `slot`'s: starts copying that seq_head to the
// other slot, which must be free. Advance waits for the copy. By a warp.
template <typename Kept>
__device__ __forceinline__ void FetchNextSeqHead(const Decode& a, int last, Kept* kept, int slot) {
  const SeqHead& seq_head = kept[slot].seq_head;
  if (seq_head.end >= last || Lane() >= static_cast<int>(sizeof(SeqHead) / 16)) return;
  const SeqHead* next = a.schedule.SeqHeads(a.params.layer) + seq_head.place + 1;
  CopyAsync16(SharedAddress(&kept[slot ^ 1].seq_head) + Lane() * 16,
              reinterpret_cast<const uint4*>(next) + Lane());
  CommitCopies();
}

// The split at `cursor`, which is one of 1 << shift pages.
__device__ inline void EnterSplit(const SeqHead& seq_head, int shift, Cursor& cursor) {
  const int split = cursor.split - seq_head.begin;
  const int pages = min((split + 1) << shift, NumPages(seq_head) - seq_head.first_live);
  cursor.iteration = (split << shift) / kIterationPages;
  cursor.iteration_end = (pages + kIterationPages - 1) / kIterationPages;
}

__device__ inline void EnterSplit(const SeqHead& seq_head, Cursor& cursor) {
  EnterSplit(seq_head, SplitShift(NumPages(seq_head) - seq_head.first_live), cursor);
}

// False at split `last`; then only the cursor's slot is valid. The row of a seq_head that it enters
// has to be loaded before its keys are used.
template <typename Kept>
__device__ bool Advance(int last, const Kept* kept, Cursor& cursor) {
  if (++cursor.iteration < cursor.iteration_end) return true;
  if (++cursor.split == last) return false;
  if (cursor.split == kept[cursor.slot].seq_head.end) {
    WaitCopies<0>();
    __syncwarp();
    cursor.slot ^= 1;
  }
  EnterSplit(kept[cursor.slot].seq_head, cursor);
  return true;
}

// The warp's half page of an iteration, where `page` is an index into the table and not an id. No
// valid keys if `exists` is false.
__device__ inline HalfPage PlaceAt(const SeqHead& seq_head, int iteration, bool exists) {
  const int warp = Warp() % kWarps;
  const int page = seq_head.first_live + iteration * kIterationPages + warp / kHalvesPerPage;
  const int half = warp % kHalvesPerPage;
  const int valid = min(kHalfPageKeys, seq_head.length - page * kPageTokens - half * kHalfPageKeys);
  const bool inside = exists && valid > 0;
  const int last = NumPages(seq_head) - 1, at = min(page, last);
  return {at, inside ? half : 0, inside ? valid : 0, at == last};
}

__device__ inline HalfPage HalfPageAt(const Decode& a, const SeqHead& seq_head, int iteration,
                                      bool exists = true) {
  HalfPage half_page = PlaceAt(seq_head, iteration, exists);
  half_page.page = LoadCoherent(a.kv.Table(seq_head.list) + half_page.page);
  return half_page;
}

// The warp's half page of an iteration within the block's first kStartPages pages.
__device__ inline HalfPage HalfPageAt(const Start& start, int iteration, bool exists = true) {
  static_assert(2 * kIterationPages <= kStartPages);
  HalfPage half_page = PlaceAt(start.seq_head, iteration, exists);
  half_page.page = FromLane(start.page, half_page.page - start.first_page);
  return half_page;
}

}  // namespace fox::cuda::decode

namespace fox::cuda {

// DecodeAttention of small batches (BatchView::small), which latency dominates, after AppendDecode:
// a cluster of blocks attends to a whole window at once and merges in shared memory. Every sequence
// has one row and none more than kSmallBatchTokens. REQUIRES: schedule.by_clusters.
cudaError_t DecodeCluster(const decode::Decode& arguments, cudaStream_t stream);

// DecodeAttention where HeadsTogether() is above one: query heads that share a kv head read its
// pages once. REQUIRES: head_dim 64 or 128.
cudaError_t DecodeGroupsBlocks(const PagedKvShape& shape, int* blocks);  // DecodeBlocks
cudaError_t DecodeGroups(const decode::Decode& arguments, cudaStream_t stream);

}  // namespace fox::cuda
