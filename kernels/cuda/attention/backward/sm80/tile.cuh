// A key tile of BackwardSm80 and its place in shared memory: the steps of its loop over rows, and
// the asynchronous copies of keys and rows. For .cu files only; kernel.cu has the mathematics.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/cuda/attention/varlen/state.h"
#include "kernels/cuda/primitives/row_layout.cuh"
#include "kernels/cuda/primitives/warp.cuh"
#include "kernels/cuda/ptx/copy_async.cuh"
#include "kernels/cuda/ptx/shared_memory.cuh"
#include "kernels/interface/varlen_attention.h"

namespace fox::cuda::backward_sm80 {

inline constexpr int kWarps = 8, kThreads = kWarps * kWarp;
inline constexpr int kWarpKeys = kVarlenTile / kWarps;  // 16, the rows of a tensor core product
// Rows of a step: with head_dim 128 more would fit neither into the registers nor into the 99 KB of
// shared memory that every GPU since Ampere has.
template <int kHeadDim>
inline constexpr int kStepRows = kHeadDim <= 64 ? 64 : 32;
inline constexpr int kStages = 2;

struct BackwardArguments {
  VarlenView q, k, v, d_out, dk, dv;
  VarlenState state;
  VarlenGradients gradients;
  int kv_heads, group;  // group: query heads of a kv head
  float scale, log2_scale;
  bool deterministic;
};

// The block's key tile.
struct KeyTile {
  int index;  // in the list, negative: none
  int kv_head;
  int first_page;  // in its sequence
  int batch, first_token, count;
  int num_rows;  // tokens from first_token to the sequence's end
};

// A step's rows.
template <int kHeadDim>
struct StepRows {
  float lse[kStepRows<kHeadDim>], delta[kStepRows<kHeadDim>];
  // c_ref of the rows' tile is cum_log_f + log_f_offset.
  double cum_log_f;
  float log_f_offset;
  int32_t first_page;
};

template <int kHeadDim>
struct SharedMemory {
  using Layout = RowLayout<kHeadDim>;
  // Addresses within the rows are permuted by XOR: everything starts at multiples of 1024.
  uint8_t keys[kVarlenTile * Layout::kBytes];
  uint8_t q[kStages][kStepRows<kHeadDim> * Layout::kBytes];
  uint8_t d_out[kStages][kStepRows<kHeadDim> * Layout::kBytes];
  uint8_t d_logits[kVarlenTile * RowLayout<kStepRows<kHeadDim>>::kBytes];  // dS: bf16 [key][row]
  float row_sums[kWarps][kStepRows<kHeadDim>];  // of dS, over a warp's keys
  StepRows<kHeadDim> rows[kStages];
  KeyTile tile;
};

// A block claims the next free key tile. Deterministic: in descending order, so that a block that
// waits for a later tile waits for a running block.
__device__ __forceinline__ KeyTile TakeTile(const BackwardArguments& arguments) {
  const VarlenState& state = arguments.state;
  const int ticket = atomicAdd(arguments.gradients.work_counter, 1);
  const int num_tiles = *state.num_tiles, n = ticket / arguments.kv_heads;
  if (n >= num_tiles) return {-1};
  KeyTile tile;
  tile.index = arguments.deterministic ? num_tiles - 1 - n : n;
  tile.kv_head = ticket % arguments.kv_heads;
  const VarlenTile own = state.tiles[tile.index], last = state.tiles[own.seq_last];
  tile.first_page = own.position / kVarlenPage;
  tile.batch = own.batch;
  tile.first_token = own.first_token;
  tile.count = own.count;
  tile.num_rows = last.first_token + last.count - own.first_token;
  return tile;
}

// A step of the loop: for each query head of the group, rows from the key tile's own on.
struct Step {
  int head;  // query head
  int row;   // the first one, counted from the key tile's first token; a multiple of the step's
  int end;   // of the rows of this head that see the tile

  // Indices in the state's arrays: of the row tile; in padded arrays, of the step's first row and
  // of its first element.
  __device__ int64_t Tile(const BackwardArguments& arguments, const KeyTile& tile) const {
    return arguments.state.HeadTile(head, tile.index) + row / kVarlenTile;
  }
  __device__ int64_t PaddedRow(const BackwardArguments& arguments, const KeyTile& tile) const {
    return Tile(arguments, tile) * kVarlenTile + row % kVarlenTile;
  }
};

__device__ __forceinline__ Step FirstStep(const BackwardArguments& arguments, const KeyTile& tile,
                                          int head) {
  const int64_t index = arguments.state.HeadTile(head, tile.index);
  const int num_tiles = arguments.gradients.last_row_tile[index] - tile.index + 1;
  return {head, 0, min(num_tiles * kVarlenTile, tile.num_rows)};
}

// The group's last step is followed by one of the next group's first head.
template <int kRows>
__device__ __forceinline__ Step NextStep(const BackwardArguments& arguments, const KeyTile& tile,
                                         const Step& step) {
  if (step.row + kRows < step.end) return {step.head, step.row + kRows, step.end};
  const int head = step.head + 1;
  if (head % arguments.group == 0) return {head, 0, 0};
  return FirstStep(arguments, tile, head);
}

template <typename T>
__device__ __forceinline__ T* RowOf(const VarlenView& view, const KeyTile& tile, int row,
                                    int head) {
  return view.At<T>(tile.batch, tile.first_token + row, head);
}

// Rows [first, first + kRows) of a view, counted from the tile's first token; rows from `end` on as
// zeros, because a weight of zero would not remove a NaN from the products.
template <int kHeadDim, int kRows>
__device__ __forceinline__ void CopyRows(const VarlenView& view, const KeyTile& tile, int head,
                                         int first, int end, uint32_t to) {
  using Layout = RowLayout<kHeadDim>;
  const auto* from = RowOf<const __nv_bfloat16>(view, tile, first, head);
  const int thread = OpaqueThreadIdx();
#pragma unroll
  for (int i = thread; i < kRows * Layout::kChunks; i += kThreads) {
    const int row = i / Layout::kChunks, chunk = i % Layout::kChunks;
    const bool real = first + row < end;
    CopyAsync16OrZero(to + Layout::Offset(row, chunk),
                      from + (real ? row : 0) * view.token_stride + chunk * 8, real);
  }
}

template <int kHeadDim>
__device__ __forceinline__ void CopyKeys(const BackwardArguments& arguments,
                                         SharedMemory<kHeadDim>& shared) {
  const KeyTile& tile = shared.tile;
  CopyRows<kHeadDim, kVarlenTile>(arguments.k, tile, tile.kv_head, 0, tile.count,
                                  SharedAddress(shared.keys));
}

template <int kHeadDim>
__device__ __forceinline__ void CopyStep(const BackwardArguments& arguments, const Step& step,
                                         int stage, SharedMemory<kHeadDim>& shared) {
  const KeyTile& tile = shared.tile;
  CopyRows<kHeadDim, kStepRows<kHeadDim>>(arguments.q, tile, step.head, step.row, tile.num_rows,
                                          SharedAddress(shared.q[stage]));
  CopyRows<kHeadDim, kStepRows<kHeadDim>>(arguments.d_out, tile, step.head, step.row, tile.num_rows,
                                          SharedAddress(shared.d_out[stage]));
  StepRows<kHeadDim>& rows = shared.rows[stage];
  const VarlenState& state = arguments.state;
  const int64_t row = step.PaddedRow(arguments, tile), row_tile = step.Tile(arguments, tile);
  constexpr int kChunks = kStepRows<kHeadDim> * sizeof(float) / 16;
  const int thread = OpaqueThreadIdx(), chunk = thread % kChunks * 4;
  if (thread < kChunks) {
    CopyAsync16(SharedAddress(rows.lse + chunk), state.lse + row + chunk);
  } else if (thread < 2 * kChunks) {
    CopyAsync16(SharedAddress(rows.delta + chunk), arguments.gradients.delta + row + chunk);
  } else if (thread == 2 * kChunks) {
    CopyAsync8(SharedAddress(&rows.cum_log_f), state.cum_log_f + row_tile);
    CopyAsync4(SharedAddress(&rows.log_f_offset), state.log_f_offset + row_tile * kVarlenTile);
    CopyAsync4(SharedAddress(&rows.first_page), state.first_page + row_tile);
  }
}

}  // namespace fox::cuda::backward_sm80
