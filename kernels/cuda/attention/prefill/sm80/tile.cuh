// A tile of PrefillSm80 and its place in shared memory: the view of the cache that a tile has, the
// layout of its rows, and the asynchronous copies that bring queries and pages. For .cu files only;
// prefill_sm80.cu has the mathematics.
#pragma once

#include <cuda_bf16.h>
#include <math_constants.h>

#include <cstdint>

#include "kernels/attention_params.h"
#include "kernels/batch_view.h"
#include "kernels/cuda/primitives/kv_index.cuh"
#include "kernels/cuda/primitives/row_layout.cuh"
#include "kernels/cuda/ptx/copy_async.cuh"
#include "kernels/cuda/ptx/shared_memory.cuh"
#include "kernels/cuda/runtime/step_schedule.h"

namespace fox::cuda::sm80 {

inline constexpr int kWarps = 4, kThreads = kWarps * kWarp;
inline constexpr int kRowTiles = 2;                   // of 16 rows, for each warp
inline constexpr int kWarpRows = kTileRows / kWarps;  // 32
// Keys that a warp looks at together: more would not fit into the registers beside the outputs.
template <int kHeadDim>
inline constexpr int kKeys = kHeadDim <= 64 ? kPageTokens : kPageTokens / 2;

struct PrefillArguments {
  const __nv_bfloat16* q;
  __nv_bfloat16* out;
  float* lse;  // or null
  int64_t q_stride, out_stride, lse_stride;
  const double* log_tolerance;     // null: rows do not stop by themselves
  const double* max_norm_product;  // [q_heads] or null
  int64_t* blocks_total;           // or null
  int64_t* blocks_pruned;
  int layer;
  float scale;  // log2(e) / sqrt(head_dim)
};

struct PageGates {
  float local[kPageTokens];
  double page_cum_log_f;
  double next_score;  // E of the page to the left
};

// The current tile.
struct TileView {
  RowBlock rows;
  int head, in_group, group;
  const int32_t* table;
  int first_page, last_page;     // of the tile's first and last row
  int left;                      // the leftmost page to visit
  double ref_log_decay, c_last;  // of the first and the last row
  double log_eps;                // -infinity: no row stops by itself
  double max_norm_product;       // of a query and a key; infinite: unknown

  // Where the quantities of a page and query head lie.
  __device__ int64_t Summary(int32_t page) const {
    return static_cast<int64_t>(page) * group + in_group;
  }
  __device__ int64_t GateIndex(int row) const {
    const int position = rows.position + row;
    return Summary(table[position / kPageTokens]) * kPageTokens + position % kPageTokens;
  }
};

template <int kHeadDim>
struct SharedMemory {
  static constexpr int kStages = kHeadDim <= 64 ? 3 : 2;
  using Layout = RowLayout<kHeadDim>;
  // Addresses within the rows are permuted by XOR: everything starts at multiples of 1024.
  uint8_t q[kTileRows * Layout::kBytes];  // in the end, the outputs
  uint8_t keys[kStages][kPageTokens * Layout::kBytes];
  uint8_t values[kStages][kPageTokens * Layout::kBytes];
  PageGates gates[kStages];
  TileView tile;  // here, for registers are scarce
};

__device__ __forceinline__ double CumulativeGate(const PagedKv& kv, int64_t gate_index) {
  return kv.page_cum_log_f[gate_index / kPageTokens] +
         static_cast<double>(static_cast<const float*>(kv.log_f_offset)[gate_index]);
}

__device__ __forceinline__ TileView ViewOf(const PrefillArguments& arguments, const PagedKv& kv,
                                           const StepSchedule& schedule, int t, int head) {
  TileView tile;
  tile.rows = schedule.tiles[t];
  tile.head = head;
  tile.group = kv.shape.group();
  tile.in_group = head % tile.group;
  tile.table = kv.Table(kv.ListIndex(tile.rows.slot, arguments.layer, head / tile.group));
  tile.first_page = tile.rows.position / kPageTokens;
  tile.last_page = (tile.rows.position + tile.rows.count - 1) / kPageTokens;
  tile.left =
      min(schedule.boundary[static_cast<int64_t>(head) * schedule.max_tiles + t], tile.first_page);
  tile.ref_log_decay = CumulativeGate(kv, tile.GateIndex(0));
  tile.c_last = CumulativeGate(kv, tile.GateIndex(tile.rows.count - 1));
  tile.max_norm_product =
      arguments.max_norm_product == nullptr ? CUDART_INF : arguments.max_norm_product[head];
  tile.log_eps =
      arguments.log_tolerance == nullptr ? -CUDART_INF : arguments.log_tolerance[tile.rows.seq];
  return tile;
}

template <int kHeadDim>
__device__ __forceinline__ void CopyQueries(const PrefillArguments& arguments,
                                            SharedMemory<kHeadDim>& shared) {
  const TileView& tile = shared.tile;
  using Layout = RowLayout<kHeadDim>;
  const uint32_t to = SharedAddress(shared.q);
  const __nv_bfloat16* from =
      arguments.q + tile.rows.first_row * arguments.q_stride + tile.head * kHeadDim;
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x); i < kTileRows * Layout::kChunks; i += kThreads) {
    const int row = i / Layout::kChunks, chunk = i % Layout::kChunks;
    const bool real = row < tile.rows.count;
    CopyAsync16OrZero(to + Layout::Offset(row, chunk),
                      from + (real ? row : 0) * arguments.q_stride + chunk * 8, real);
  }
}

// Tokens past the tile's last row become zero: whatever lies there must not reach the products,
// where a weight of zero would not silence a NaN.
template <int kHeadDim>
__device__ __forceinline__ void CopyTokens(const PagedKv& kv, int n, int32_t page, int stage,
                                           SharedMemory<kHeadDim>& shared) {
  using Layout = RowLayout<kHeadDim>;
  const int valid = shared.tile.rows.position + shared.tile.rows.count - n * kPageTokens;
  const uint32_t keys = SharedAddress(shared.keys[stage]);
  const uint32_t values = SharedAddress(shared.values[stage]);
  const int64_t first = static_cast<int64_t>(page) * (kPageTokens * kHeadDim);
  const __nv_bfloat16* from_keys = static_cast<const __nv_bfloat16*>(kv.keys) + first;
  const __nv_bfloat16* from_values = static_cast<const __nv_bfloat16*>(kv.values) + first;
  const int thread = OpaqueThreadIdx();
  constexpr int kCopies = kPageTokens * Layout::kChunks;
  static_assert(kCopies % kThreads == 0);
#pragma unroll
  for (int step = 0; step < kCopies / kThreads; ++step) {
    const int i = step * kThreads + thread;
    const int row = i / Layout::kChunks;
    const int offset = Layout::Offset(row, i % Layout::kChunks);
    CopyAsync16OrZero(keys + offset, from_keys + i * 8, row < valid);
    CopyAsync16OrZero(values + offset, from_values + i * 8, row < valid);
  }
}

// A gate past the tile's last row may be anything: all keys there are hidden.
__device__ __forceinline__ void CopyGates(const PagedKv& kv, const TileView& tile, int n,
                                          int32_t page, PageGates& gates) {
  constexpr int kChunks = kPageTokens * sizeof(float) / 16;
  const int thread = OpaqueThreadIdx();
  const int64_t summary = tile.Summary(page);
  if (thread < kChunks) {
    const float* local = static_cast<const float*>(kv.log_f_offset) + summary * kPageTokens;
    CopyAsync16OrZero(SharedAddress(gates.local + thread * 4), local + thread * 4, true);
  } else if (thread == kChunks) {
    CopyAsync8(SharedAddress(&gates.page_cum_log_f), kv.page_cum_log_f + summary);
  } else if (thread == kChunks + 1 && n > tile.left && isfinite(tile.log_eps)) {
    CopyAsync8(SharedAddress(&gates.next_score),
               kv.log_mass_bound + tile.Summary(tile.table[n - 1]));
  }
}

// Brings page `n` into a stage, as one group of copies; an empty group left of the view.
template <int kHeadDim>
__device__ __forceinline__ void CopyPage(const PagedKv& kv, int n, int stage,
                                         SharedMemory<kHeadDim>& shared) {
  const TileView& tile = shared.tile;
  if (n >= tile.left) {
    const int32_t page = tile.table[n];
    CopyTokens<kHeadDim>(kv, n, page, stage, shared);
    CopyGates(kv, tile, n, page, shared.gates[stage]);
  }
  CommitCopies();
}

}  // namespace fox::cuda::sm80
