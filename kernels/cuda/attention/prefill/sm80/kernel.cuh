// Prefill attention with mma.sync: a thread block of four warps owns a tile of 128 rows of one
// query head and loops over its pages from the diagonal to the left, while the next pages are
// copied. Logits are in units of log 2 and relative to the tile's first row,
//     x_ij = s_ij log2(e) + (c_ref - c_j) log2(e),
// so that a row's own gate, constant within the row, cancels in the softmax. See prefill.h.
#pragma once

#include <cuda_bf16.h>

#include <cmath>

#include "kernels/cuda/attention/merged_row.cuh"
#include "kernels/cuda/attention/prefill/quad_rows.cuh"
#include "kernels/cuda/attention/prefill/sm80/tile.cuh"
#include "kernels/cuda/primitives/warp.cuh"
#include "kernels/cuda/ptx/dependent_launch.cuh"
#include "kernels/cuda/ptx/fast_math.cuh"
#include "kernels/cuda/ptx/mma_sm80.cuh"
#include "kernels/cuda/runtime/kernel_attributes.h"
#include "kernels/cuda/runtime/launch.h"
#include "kernels/paging/acp.h"

namespace fox::cuda::sm80 {

static_assert(kWarpRows == kRowTiles * 16);
template <int kHeadDim>
inline constexpr int kKeyTiles = kKeys<kHeadDim> / 8;  // columns of 8 logits

// A warp's rows: rows g and g + 8 of each 16-row tile, g = lane / 4; a row is spread over the four
// lanes of a quad.
template <int kHeadDim>
struct RowState {
  float out[kRowTiles][kHeadDim / 8][4] = {};  // not yet divided by the sum
  float row_max[kRowTiles][2];                 // largest x so far, -infinity before any
  float sum[kRowTiles][2] = {};                // of exp2(x - top), this thread's columns

  __device__ RowState() {
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) row_max[r][0] = row_max[r][1] = -INFINITY;
  }
};

// Addresses of the warp's queries for LoadQueries.
template <typename Source, int kHeadDim>
__device__ __forceinline__ uint32_t QueryAddress(const SharedMemory<Source, kHeadDim>& shared) {
  const int thread = OpaqueThreadIdx(), lane = thread % kWarp;
  const int row = thread / kWarp * kWarpRows + lane % 16;
  return SharedAddress(shared.q) + RowLayout<kHeadDim>::Offset(row, lane / 16);
}

// The queries' fragments for one step of 16 dimensions.
template <int kHeadDim>
__device__ __forceinline__ void LoadQueries(uint32_t address, int step,
                                            uint32_t (&q)[kRowTiles][4]) {
#pragma unroll
  for (int r = 0; r < kRowTiles; ++r) {
    LoadMatrices(q[r], (address + r * 16 * RowLayout<kHeadDim>::kBytes) ^ (step * 32));
  }
}

// x of the warp's rows and the page's keys from `first_key` on.
template <typename Source, int kHeadDim, bool kQInRegisters>
__device__ __forceinline__ void Logits(
    const SharedMemory<Source, kHeadDim>& shared, int stage, int first_key,
    const uint32_t (&held)[kQInRegisters ? kHeadDim / 16 : 1][kRowTiles][4], float page_gate,
    float scale, float (&x)[kRowTiles][kKeyTiles<kHeadDim>][4]) {
  using Layout = RowLayout<kHeadDim>;
  const int lane = OpaqueThreadIdx() % kWarp;
  const uint32_t keys = SharedAddress(shared.keys[stage]) +
                        Layout::Offset(first_key + lane / 16 * 8 + lane % 8, lane / 8 % 2);
  [[maybe_unused]] const uint32_t queries = kQInRegisters ? 0 : QueryAddress(shared);
#pragma unroll
  for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
    for (int k = 0; k < kKeyTiles<kHeadDim>; ++k)
      x[r][k][0] = x[r][k][1] = x[r][k][2] = x[r][k][3] = 0;
  }
#pragma unroll
  for (int step = 0; step < kHeadDim / 16; ++step) {
    uint32_t loaded[kRowTiles][4];
    if constexpr (!kQInRegisters) LoadQueries<kHeadDim>(queries, step, loaded);
    const uint32_t(&q)[kRowTiles][4] = *(kQInRegisters ? &held[kQInRegisters ? step : 0] : &loaded);
#pragma unroll
    for (int k = 0; k < kKeyTiles<kHeadDim>; k += 2) {
      uint32_t b[4];
      LoadMatrices(b, (keys + k * 8 * Layout::kBytes) ^ (step * 32));
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r) {
        MultiplyAdd(x[r][k], q[r], b[0], b[1]);
        MultiplyAdd(x[r][k + 1], q[r], b[2], b[3]);
      }
    }
  }
#pragma unroll
  for (int k = 0; k < kKeyTiles<kHeadDim>; ++k) {
    const float2 local = *reinterpret_cast<const float2*>(shared.gates[stage].local + first_key +
                                                          k * 8 + lane % 4 * 2);
    const float b0 = (page_gate - local.x) * kLog2E, b1 = (page_gate - local.y) * kLog2E;
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) {
      x[r][k][0] = fmaf(x[r][k][0], scale, b0);
      x[r][k][1] = fmaf(x[r][k][1], scale, b1);
      x[r][k][2] = fmaf(x[r][k][2], scale, b0);
      x[r][k][3] = fmaf(x[r][k][3], scale, b1);
    }
  }
}

// Hides the keys after each row; the warp's first row sees `visible` of these keys.
template <int kHeadDim>
__device__ __forceinline__ void Mask(int visible, float (&x)[kRowTiles][kKeyTiles<kHeadDim>][4]) {
  const int lane = OpaqueThreadIdx() % kWarp;
#pragma unroll
  for (int r = 0; r < kRowTiles; ++r) {
    const int keys = visible + r * 16 + lane / 4 - lane % 4 * 2;
#pragma unroll
    for (int k = 0; k < kKeyTiles<kHeadDim>; ++k) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (k * 8 + i % 2 >= keys + i / 2 * 8) x[r][k][i] = -INFINITY;
      }
    }
  }
}

// Online softmax: x becomes exp2(x - top), and earlier sums are rescaled to the new top.
template <int kHeadDim>
__device__ __forceinline__ void Weigh(float (&x)[kRowTiles][kKeyTiles<kHeadDim>][4],
                                      RowState<kHeadDim>& rows) {
  float rescale[kRowTiles][2];
  bool shrinks = false;
#pragma unroll
  for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float row_max = rows.row_max[r][half];
#pragma unroll
      for (int k = 0; k < kKeyTiles<kHeadDim>; ++k) {
        row_max = fmaxf(row_max, fmaxf(x[r][k][half * 2], x[r][k][half * 2 + 1]));
      }
      row_max = QuadMax(row_max);
      // A row without visible keys so far keeps zero weights, not (-infinity) - (-infinity).
      const float reference_max = row_max == -INFINITY ? 0.0f : row_max;
      rescale[r][half] = Exp2(rows.row_max[r][half] - reference_max);
      shrinks |= row_max != rows.row_max[r][half];
      rows.row_max[r][half] = row_max;
      float sum = 0;
#pragma unroll
      for (int k = 0; k < kKeyTiles<kHeadDim>; ++k) {
        x[r][k][half * 2] = Exp2(x[r][k][half * 2] - reference_max);
        x[r][k][half * 2 + 1] = Exp2(x[r][k][half * 2 + 1] - reference_max);
        sum += x[r][k][half * 2] + x[r][k][half * 2 + 1];
      }
      rows.sum[r][half] = rows.sum[r][half] * rescale[r][half] + sum;
    }
  }
  if (!__any_sync(kAllLanes, shrinks)) return;  // shrink is 1 wherever something was summed
#pragma unroll
  for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
    for (int m = 0; m < kHeadDim / 8; ++m) {
#pragma unroll
      for (int i = 0; i < 4; ++i) rows.out[r][m][i] *= rescale[r][i / 2];
    }
  }
}

// out += weights V.
template <typename Source, int kHeadDim>
__device__ __forceinline__ void AddValues(const SharedMemory<Source, kHeadDim>& shared, int stage,
                                          int first_key,
                                          const float (&weight)[kRowTiles][kKeyTiles<kHeadDim>][4],
                                          RowState<kHeadDim>& rows) {
  using Layout = RowLayout<kHeadDim>;
  const int lane = OpaqueThreadIdx() % kWarp;
  const uint32_t values =
      SharedAddress(shared.values[stage]) + Layout::Offset(first_key + lane % 16, lane / 16);
#pragma unroll
  for (int k = 0; k < kKeyTiles<kHeadDim>; k += 2) {
    uint32_t p[kRowTiles][4];
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float(&w)[4] = weight[r][k + i / 2];
        p[r][i] = PackBf16(w[i % 2 * 2], w[i % 2 * 2 + 1]);
      }
    }
#pragma unroll
    for (int m = 0; m < kHeadDim / 8; m += 2) {
      uint32_t b[4];
      LoadTransposed(b, (values + k * 8 * Layout::kBytes) ^ (m * 16));
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r) {
        MultiplyAdd(rows.out[r][m], p[r], b[0], b[1]);
        MultiplyAdd(rows.out[r][m + 1], p[r], b[2], b[3]);
      }
    }
  }
}

// Attends from the warp's rows to page `n`, which is in `stage`.
template <typename Source, int kHeadDim, bool kQInRegisters>
__device__ __forceinline__ void AttendPage(
    const SharedMemory<Source, kHeadDim>& shared, int stage, int n,
    const uint32_t (&held)[kQInRegisters ? kHeadDim / 16 : 1][kRowTiles][4], float scale,
    RowState<kHeadDim>& rows) {
  const TileView& tile = shared.tile;
  const auto page_gate =
      static_cast<float>(tile.ref_log_decay - shared.gates[stage].page_cum_log_f);
  // Keys of the page that the warp's first row sees; zero or less: none.
  const int of_page = tile.position + OpaqueThreadIdx() / kWarp * kWarpRows + 1 - n * kPageTokens;
#pragma unroll 1
  for (int key = kPageTokens - kKeys<kHeadDim>; key >= 0; key -= kKeys<kHeadDim>) {
    const int visible = of_page - key;
    if (visible + kWarpRows <= 1) continue;
    float x[kRowTiles][kKeyTiles<kHeadDim>][4];
    Logits<Source, kHeadDim, kQInRegisters>(shared, stage, key, held, page_gate, scale, x);
    if (visible < kKeys<kHeadDim>) Mask<kHeadDim>(visible, x);
    Weigh<kHeadDim>(x, rows);
    AddValues(shared, stage, key, x, rows);
  }
}

// The row certificate (acp.md 2d) for pages 0..n: true if the rows of this quad may stop before
// page n. `gates`: of page n + 1. Rows past the tile's end may always stop.
template <int kHeadDim, typename Tile>
__device__ __forceinline__ bool RowsMayStop(const Tile& tile, int n, const PageGates& gates,
                                            const RowState<kHeadDim>& rows) {
  // Sums shrink and grow by a page at a time, with three roundings.
  const double rounding =
      RowRounding(kHeadDim, tile.max_norm_product, tile.c_last, gates.page_cum_log_f) +
      0x1p-22 * (tile.last_page - n);
  const double log_z =
      LogDenominatorToStop(gates.next_score, tile.ref_log_decay, rounding, tile.log_eps);
  const float needed = __double2float_ru(log_z * kLog2EDouble);  // a NaN keeps
  const int thread = OpaqueThreadIdx();
  const int row = thread / kWarp * kWarpRows + thread % kWarp / 4;
  bool all = true;
#pragma unroll
  for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float sum = QuadSum(rows.sum[r][half]);
      const bool stops = needed <= rows.row_max[r][half] + Log2(sum);
      all = all && (stops || row + r * 16 + half * 8 >= tile.count);
    }
  }
  return all;
}

// Merges the sinks, divides by the sums, transforms and stores the warp's rows.
template <typename Source, int kHeadDim>
__device__ __forceinline__ void Store(const Source& source, const typename Source::Tile& tile,
                                      const RowState<kHeadDim>& rows) {
#pragma unroll
  for (int r = 0; r < kRowTiles; ++r) {
    const int first = Warp() * kWarpRows + r * 16 + Lane() / 4;
    QuadTransform<kHeadDim> transform;
    if constexpr (Source::kTransforms) transform.Load(source.transform, tile, first);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = first + half * 8;
      MergedRow sums{rows.row_max[r][half], QuadSum(rows.sum[r][half]), 1, 0};
      source.MergeSink(tile, row, sums);
      const float scale = 1 / sums.sum * sums.of_sums;
      QuadRow<kHeadDim> x;
#pragma unroll
      for (int i = 0; i < kHeadDim / 4; ++i) x[i] = rows.out[r][i / 2][half * 2 + i % 2] * scale;
      if constexpr (Source::kTransforms) {
        const float norm_scale = transform.Apply(source.transform, half, x);
        if (row < tile.count && Lane() % 4 == 0) {
          source.transform.StoreRowSum(tile.first_row + row, tile.head, sums.max, sums.sum,
                                       norm_scale);
        }
      }
      StoreRow<kHeadDim>(x, row < tile.count, source.template OutRow<kHeadDim>(tile, row));
      if (Lane() % 4 == 0) source.StoreLogSum(tile, row, sums.max, sums.sum);
    }
  }
}

// A block per query head and tile, the heads of a tile in neighbouring blocks: the last tiles,
// which see the most pages, start first. There may be more blocks than NumTiles() needs.
template <typename Source, int kHeadDim>
__global__ void __launch_bounds__(kThreads, 2)
    PrefillSm80Kernel(const __grid_constant__ Source source, int q_heads) {
  extern __shared__ __align__(1024) uint8_t shared_bytes[];
  auto& shared = *reinterpret_cast<SharedMemory<Source, kHeadDim>*>(shared_bytes);
  constexpr int kStages = SharedMemory<Source, kHeadDim>::kStages;
  constexpr bool kQInRegisters = kHeadDim <= 64;  // queries stay in registers
  TriggerDependents();
  WaitOnDependencies();
  const int block = static_cast<int>(blockIdx.x);
  const int t = source.NumTiles() - 1 - block / q_heads;
  if (t < 0 || !source.Covers(t, block % q_heads)) return;
  if (threadIdx.x == 0) shared.tile = source.ViewOf(t, block % q_heads);
  __syncthreads();
  const typename Source::Tile& tile = shared.tile;

  CopyQueries(source, shared);
  CommitCopies();
#pragma unroll
  for (int i = 0; i < kStages - 1; ++i) CopyPage(source, tile.last_page - i, i, shared);
  uint32_t held[kQInRegisters ? kHeadDim / 16 : 1][kRowTiles][4];
  if constexpr (kQInRegisters) {
    WaitCopies<kStages - 1>();
    __syncthreads();
    const uint32_t queries = QueryAddress(shared);
#pragma unroll
    for (int step = 0; step < kHeadDim / 16; ++step) {
      LoadQueries<kHeadDim>(queries, step, held[step]);
    }
  }

  const int first_row = Warp() * kWarpRows;  // the warp's
  RowState<kHeadDim> rows;
  int n = tile.last_page, stage = 0;  // of page n
#pragma unroll 1
  for (; n >= tile.left; --n) {
    const int before = stage == 0 ? kStages - 1 : stage - 1;  // of page n + 1
    bool stops = false;
    if constexpr (Source::kCertified) {
      stops = n < tile.first_page && isfinite(tile.log_eps) &&
              RowsMayStop<kHeadDim>(tile, n, shared.gates[before], rows);
    }
    WaitCopies<kStages - 2>();
    // From here on all warps see page n, and none reads page n + 1 any more.
    if (__syncthreads_and(stops)) break;
    CopyPage(source, n - (kStages - 1), before, shared);
    if (first_row < tile.count) {
      AttendPage<Source, kHeadDim, kQInRegisters>(shared, stage, n, held, source.scale, rows);
    }
    stage = stage + 1 == kStages ? 0 : stage + 1;
  }
  WaitCopies<0>();
  if (first_row < tile.count) {
    Store(source, tile, rows);
  } else if constexpr (Source::kPadsLogSums) {
    source.StoreLogSum(tile, first_row + Lane(), 0, 0);
  }
  if (threadIdx.x == 0) source.CountBlocks(tile, n + 1);
}

// `max_tiles`: at least NumTiles().
template <typename Source, int kHeadDim>
cudaError_t LaunchPrefillSm80(const Source& source, int q_heads, int max_tiles,
                              cudaStream_t stream) {
  constexpr size_t kBytes = sizeof(SharedMemory<Source, kHeadDim>);
  const auto kernel = PrefillSm80Kernel<Source, kHeadDim>;
  const cudaError_t prepared = AllowDynamicSmem<kBytes>(KernelAddress(kernel));
  if (prepared != cudaSuccess) return prepared;
  // Tiles may be more than a grid's y holds.
  const auto blocks = static_cast<unsigned>(int64_t{max_tiles} * q_heads);
  return Launch(kernel, dim3(blocks), dim3(kThreads), kBytes, stream, source, q_heads);
}

}  // namespace fox::cuda::sm80
