// A tile of PrefillSm80 and its place in shared memory: the layout of its rows, and the
// asynchronous copies of queries, keys, values and gates. Their addresses come from a Source, the
// kernel's argument: PagedSource (paged_source.cuh) or VarlenSource (varlen_source.cuh). kernel.cuh
// has the mathematics.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/cuda/primitives/row_layout.cuh"
#include "kernels/cuda/primitives/warp.cuh"
#include "kernels/cuda/ptx/copy_async.cuh"
#include "kernels/cuda/ptx/shared_memory.cuh"
#include "kernels/cuda/runtime/step_schedule.h"
#include "kernels/paging/paged_kv.h"

namespace fox::cuda::sm80 {

inline constexpr int kWarps = 4, kThreads = kWarps * kWarp;
inline constexpr int kRowTiles = 2;                   // of 16 rows, for each warp
inline constexpr int kWarpRows = kTileRows / kWarps;  // 32
// Keys that a warp processes at once: more would not fit into the registers beside the outputs.
template <int kHeadDim>
inline constexpr int kKeys = kHeadDim <= 64 ? kPageTokens : kPageTokens / 2;

struct PageGates {
  float local[kPageTokens];
  double page_cum_log_f;
  double next_score;  // E of the page to the left
};

// The current tile; a Source's Tile has more.
struct TileView {
  int count, position, head;  // rows, and of the first row
  int first_page, last_page;  // of the tile's first and last row
  int left;                   // the leftmost page to visit
  double ref_log_decay;       // of the first row
};

// Rows of head_dim bf16 in global memory.
struct GlobalRows {
  const __nv_bfloat16* first;
  int64_t stride;
};

// The input of CopyGates for a page. A source's PageAt returns its number of a sequence's page.
struct GlobalGates {
  const float* local;  // [64], c relative to *base
  const double* base;
};

template <typename Source, int kHeadDim>
struct SharedMemory {
  static constexpr int kStages = kHeadDim <= 64 ? 3 : 2;
  using Layout = RowLayout<kHeadDim>;
  // Addresses within the rows are permuted by XOR: everything starts at multiples of 1024.
  uint8_t q[kTileRows * Layout::kBytes];
  uint8_t keys[kStages][kPageTokens * Layout::kBytes];
  uint8_t values[kStages][kPageTokens * Layout::kBytes];
  PageGates gates[kStages];
  typename Source::Tile tile;  // here, for registers are scarce
};

template <typename Source, int kHeadDim>
__device__ __forceinline__ void CopyQueries(const Source& source,
                                            SharedMemory<Source, kHeadDim>& shared) {
  const typename Source::Tile& tile = shared.tile;
  using Layout = RowLayout<kHeadDim>;
  const uint32_t to = SharedAddress(shared.q);
  const GlobalRows from = source.template Queries<kHeadDim>(tile);
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x); i < kTileRows * Layout::kChunks; i += kThreads) {
    const int row = i / Layout::kChunks, chunk = i % Layout::kChunks;
    const bool real = row < tile.count;
    CopyAsync16OrZero(to + Layout::Offset(row, chunk),
                      from.first + (real ? row : 0) * from.stride + chunk * 8, real);
  }
}

// Tokens past the tile's last row become zero, because a weight of zero would not remove a NaN from
// the products.
template <typename Source, int kHeadDim>
__device__ __forceinline__ void CopyTokens(const Source& source, int n, int page, int stage,
                                           SharedMemory<Source, kHeadDim>& shared) {
  using Layout = RowLayout<kHeadDim>;
  const int valid = shared.tile.position + shared.tile.count - n * kPageTokens;
  const uint32_t keys = SharedAddress(shared.keys[stage]);
  const uint32_t values = SharedAddress(shared.values[stage]);
  const GlobalRows from_keys = source.template Keys<kHeadDim>(shared.tile, n, page);
  const GlobalRows from_values = source.template Values<kHeadDim>(shared.tile, n, page);
  const int thread = OpaqueThreadIdx();
  constexpr int kCopies = kPageTokens * Layout::kChunks;
  static_assert(kCopies % kThreads == 0);
#pragma unroll
  for (int step = 0; step < kCopies / kThreads; ++step) {
    const int i = step * kThreads + thread;
    const int row = i / Layout::kChunks, chunk = i % Layout::kChunks;
    const int offset = Layout::Offset(row, chunk);
    CopyAsync16OrZero(keys + offset, from_keys.first + row * from_keys.stride + chunk * 8,
                      row < valid);
    CopyAsync16OrZero(values + offset, from_values.first + row * from_values.stride + chunk * 8,
                      row < valid);
  }
}

// A gate past the tile's last row may be anything: all keys there are hidden.
template <typename Source>
__device__ __forceinline__ void CopyGates(const Source& source, const typename Source::Tile& tile,
                                          int n, int page, PageGates& gates) {
  constexpr int kChunks = kPageTokens * sizeof(float) / 16;
  const int thread = OpaqueThreadIdx();
  const GlobalGates from = source.Gates(tile, page);
  if (thread < kChunks) {
    CopyAsync16OrZero(SharedAddress(gates.local + thread * 4), from.local + thread * 4, true);
  } else if (thread == kChunks) {
    CopyAsync8(SharedAddress(&gates.page_cum_log_f), from.base);
  } else if constexpr (Source::kCertified) {
    if (thread == kChunks + 1 && n > tile.left && isfinite(tile.log_eps)) {
      CopyAsync8(SharedAddress(&gates.next_score), source.NextScore(tile, n));
    }
  }
}

// Copies page `n` into a stage, as one group of copies; an empty group left of the first page.
template <typename Source, int kHeadDim>
__device__ __forceinline__ void CopyPage(const Source& source, int n, int stage,
                                         SharedMemory<Source, kHeadDim>& shared) {
  if (n >= shared.tile.left) {
    const int page = source.PageAt(shared.tile, n);
    CopyTokens(source, n, page, stage, shared);
    CopyGates(source, shared.tile, n, page, shared.gates[stage]);
  }
  CommitCopies();
}

}  // namespace fox::cuda::sm80
