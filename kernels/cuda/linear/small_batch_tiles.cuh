// Tiles of W of small_batch_gemm.cu, in bf16 or in 8 bits, from global memory through the ring into
// the registers of the warps that multiply them.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/cuda/linear/device_weight.h"
#include "kernels/cuda/linear/small_batch_input.cuh"
#include "kernels/cuda/primitives/copy_rows.cuh"
#include "kernels/cuda/primitives/ring.cuh"
#include "kernels/cuda/primitives/warp.cuh"
#include "kernels/cuda/ptx/mbarrier.cuh"
#include "kernels/cuda/ptx/mma_sm80.cuh"

namespace fox::cuda::small_batch {

inline constexpr int kConsumers = kInputThreads;
inline constexpr int kConsumerWarps = kConsumers / kWarp;
// Further warps copy, each every other row of a tile: the copy engine is given a row at a time, and
// one warp alone would not keep ahead of the memory by much.
inline constexpr int kCopyWarps = 2;
inline constexpr int kThreads = kConsumers + kCopyWarps * kWarp;
inline constexpr int kTileRows = 16;
inline constexpr int kHalfRows = kTileRows / 2;  // of either half of W, where the product is gated
inline constexpr int kChunkCols = 64;            // of a warp
inline constexpr int kTileCols = kConsumerWarps * kChunkCols;
inline constexpr int kStep = 16;  // columns of one tensor core product
inline constexpr int kChunkSteps = kChunkCols / kStep;
static_assert(kConsumerWarps == 8);  // the classes of columns
// 16 bytes more than the columns, so that ldmatrix finds eight rows in different banks.
inline constexpr int kPad = 16;

template <bool kFp8>
struct Tiles {
  static constexpr int kBytes = kFp8 ? 1 : 2;  // of a weight
  static constexpr int kStride = kTileCols * kBytes + kPad;
  static constexpr int kLoads = kChunkCols * kBytes / 32;  // ldmatrix, of a warp's chunk
  // Tiles that a block has under way. Enough to keep the memory busy; more would only make all
  // other loads wait, those of the kernel before among them.
  static constexpr int kUnderWay = kFp8 ? 6 : 3;
  static constexpr int kMinStages = kFp8 ? 7 : 4;
  static_assert(kMinStages >= kUnderWay);  // else a stage could be two rounds ahead
};

struct SmallBatchGemmArguments : GemmArguments {
  const unsigned char* codes;  // in place of `weight`: rows of Fp8Stride
  const float* scales;         // of these rows
  InputRows input;
  int group_rows;  // outputs of a tile's rows
  int block_rows;  // outputs; the first `extra_blocks` blocks have one more
  int extra_blocks;
  int stages;
  int tile_bytes;
};

// A copying warp: its rows of all tiles of the outputs [first, last), a tile's outputs at a time
// from left to right. It has every other row, or those of one half of W.
template <bool kFp8>
__device__ __forceinline__ void CopyWeights(const SmallBatchGemmArguments& a, const Ring& ring,
                                            int first, int last) {
  static_assert(kCopyWarps == 2);
  const int warp = Warp() - kConsumerWarps;
  const int step = a.gated ? 1 : kCopyWarps, tile_row = a.gated ? warp * kHalfRows : warp;
  constexpr int kBytes = Tiles<kFp8>::kBytes, kStride = Tiles<kFp8>::kStride;
  const int64_t row_bytes = kFp8 ? Fp8Stride(a.in) : int64_t{a.in} * kBytes;
  const unsigned char* const weight =
      (kFp8 ? a.codes : reinterpret_cast<const unsigned char*>(a.weight)) +
      (a.gated ? int64_t{warp} * a.out : int64_t{warp}) * row_bytes;
  RingPlace at, arrived;
  int tile = 0;
  for (int row = first; row < last; row += a.group_rows) {
    const int outputs = min(a.group_rows, last - row);
    const int rows = a.gated ? outputs : (outputs - warp + kCopyWarps - 1) / kCopyWarps;
    for (int col = 0; col < a.in; col += kTileCols, ++tile) {
      if (tile >= Tiles<kFp8>::kUnderWay) {
        while (!ring.full[arrived.stage].HasEnded(arrived.parity)) {
        }
        arrived.Advance(a.stages);
      }
      while (!ring.empty[at.stage].HasEnded(at.parity ^ 1)) {
      }
      BulkCopyRows(weight + row * row_bytes + col * kBytes, step * row_bytes,
                   ring.At(at.stage) + tile_row * kStride, step * kStride, rows,
                   static_cast<int>(min(int64_t{kTileCols * kBytes}, row_bytes - col * kBytes)),
                   &ring.full[at.stage]);
      at.Advance(a.stages);
    }
  }
}

// A warp's chunk of a tile of W, as ldmatrix loads it: the operands of a tensor core product, or in
// 8 bits of two.
template <bool kFp8>
using Fragments = uint32_t[Tiles<kFp8>::kLoads][4];

__device__ __forceinline__ void OperandOf(const Fragments<false>& w, int step, uint32_t (&a)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) a[i] = w[step][i];
}
__device__ __forceinline__ void OperandOf(const Fragments<true>& w, int step, uint32_t (&a)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) a[i] = WidenCodes(w[step / 2][step % 2 * 2 + i % 2], i >= 2);
}

// Takes a multiplying warp's chunks of a block's tiles out of the ring, one after the other.
template <bool kFp8>
class TileReader {
 public:
  __device__ __forceinline__ TileReader(const SmallBatchGemmArguments& a, const Ring& ring,
                                        int rows)
      : a_(a),
        ring_(ring),
        from_(SharedAddress(ring.memory) + min(Lane() % 16, a.tile_bytes / kStride - 1) * kStride +
              Warp() * kChunkCols * Tiles<kFp8>::kBytes + Lane() / 16 * 16),
        left_((rows + a.group_rows - 1) / a.group_rows * ((a.in + kTileCols - 1) / kTileCols)) {}

  // The next tile's; past the last one that one's again. What lies past the last row or column is
  // not used.
  __device__ __forceinline__ void Take(Fragments<kFp8>& w) {
    while (!ring_.full[at_.stage].HasEnded(at_.parity)) {
    }
#pragma unroll
    for (int i = 0; i < Tiles<kFp8>::kLoads; ++i) {
      LoadMatrices(w[i], from_ + at_.stage * a_.tile_bytes + i * 32);
    }
    __syncwarp();
    if (Lane() == 0) ring_.empty[at_.stage].Arrive();
    if (--left_ > 0) at_.Advance(a_.stages);
  }

 private:
  static constexpr int kStride = Tiles<kFp8>::kStride;

  const SmallBatchGemmArguments& a_;
  const Ring& ring_;
  const uint32_t from_;  // the lane's row and column in stage 0
  int left_;             // tiles from the next one on
  RingPlace at_;
};

}  // namespace fox::cuda::small_batch
