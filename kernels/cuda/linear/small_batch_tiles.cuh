// Tiles of W of small_batch_gemm.cu, in bf16 or in 8 bits, from global memory through the ring into
// the registers of the warps that multiply them. A tile lies in lines of 128 bytes: the first line
// of all its rows, then the second one; the 16-byte units of a line are swizzled by the number of
// the line, as TMA does, so that ldmatrix finds eight rows in different banks.
#pragma once

#include <cuda.h>
#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/cuda/linear/device_weight.h"
#include "kernels/cuda/linear/small_batch_input.cuh"
#include "kernels/cuda/primitives/ring.cuh"
#include "kernels/cuda/primitives/warp.cuh"
#include "kernels/cuda/ptx/copy_async.cuh"
#include "kernels/cuda/ptx/mbarrier.cuh"
#include "kernels/cuda/ptx/mma_sm80.cuh"
#include "kernels/cuda/ptx/tma.cuh"
#include "kernels/cuda/runtime/tensor_map.h"

namespace fox::cuda::small_batch {

inline constexpr int kConsumers = kInputThreads;
inline constexpr int kConsumerWarps = kConsumers / kWarp;
// Further warps copy: by boxes one thread, by rows all of them.
inline constexpr int kCopyWarps = 2;
inline constexpr int kThreads = kConsumers + kCopyWarps * kWarp;
inline constexpr int kTileRows = 16;
inline constexpr int kHalfRows = kTileRows / 2;  // of either half of W, where the product is gated
inline constexpr int kChunkCols = 64;            // of a warp
inline constexpr int kTileCols = kConsumerWarps * kChunkCols;
inline constexpr int kStep = 16;  // columns of one tensor core product
inline constexpr int kChunkSteps = kChunkCols / kStep;
static_assert(kConsumerWarps == 8 && kStep == kFp8Step);  // the classes of columns
inline constexpr int kLineUnits = kMapLineBytes / 16;
inline constexpr int kTileAlignment = 1024;  // the swizzle repeats

template <bool kFp8>
struct Tiles {
  static constexpr int kBytes = kFp8 ? 1 : 2;                        // of a weight
  static constexpr int kLines = kTileCols * kBytes / kMapLineBytes;  // of a row
  static constexpr int kLoads = kChunkCols * kBytes / 32;            // ldmatrix, of a warp's chunk
  // Tiles that a block has under way. Enough to keep the memory busy; more would only make all
  // other loads wait, those of the kernel before among them.
  static constexpr int kUnderWay = kFp8 ? 8 : 3;
  static constexpr int kMinStages = kFp8 ? 8 : 4;
  static_assert(kMinStages >= kUnderWay);  // else a stage could be two rounds ahead

  __host__ __device__ static constexpr int64_t RowBytes(int in) {
    return kFp8 ? Fp8Stride(in) : int64_t{in} * kBytes;
  }
  // Of a tile in the ring.
  __host__ __device__ static constexpr int Bytes(int rows) {
    const int bytes = rows * kLines * kMapLineBytes;
    return (bytes + kTileAlignment - 1) / kTileAlignment * kTileAlignment;
  }
};

static_assert(Tiles<true>::kMinStages * Tiles<true>::Bytes(kTileRows) <=
              Tiles<false>::kMinStages * Tiles<false>::Bytes(kTileRows));  // SmallBatchRows

struct SmallBatchGemmArguments : GemmArguments {
  InputRows input;
  CUtensorMap tiles;  // W in boxes of a tile
  bool by_rows;       // not by boxes: no Hopper, or W's rows are no whole lines
  int group_rows;     // outputs of a tile's rows
  int tile_rows;      // of W: group_rows, or of either half as many
  int block_rows;     // outputs of a block but the last
  int blocks;
  int stages;
  int tile_bytes;
};

// Arrivals that fill a stage, and which of the copying warps' threads they are of.
__device__ __forceinline__ int TileArrivals(const SmallBatchGemmArguments& a) {
  return a.by_rows ? kCopyWarps * kWarp : 1;
}
__device__ __forceinline__ bool CopiesTiles(const SmallBatchGemmArguments& a) {
  return a.by_rows || threadIdx.x == kConsumers;
}

// The description of the boxes; by one thread.
__device__ __forceinline__ void PrefetchBoxes(const SmallBatchGemmArguments& a) {
#if __CUDA_ARCH__ >= 900
  if (!a.by_rows) PrefetchTensorMap(&a.tiles);
#endif
}

// A copying thread's part of the tile at (row, col) with so many outputs: a box, of as many rows as
// any tile has, or 16-byte units of every other row that is there.
template <bool kFp8>
__device__ __forceinline__ void CopyTile(const SmallBatchGemmArguments& a, int row, int outputs,
                                         int col, unsigned char* to, Mbarrier* barrier) {
  using T = Tiles<kFp8>;
  const int first = col * T::kBytes;
#if __CUDA_ARCH__ >= 900
  if (!a.by_rows) {
    barrier->ArriveAndExpect(static_cast<uint32_t>(a.tile_rows * T::kLines * kMapLineBytes));
    return TmaLoad4DOnce(to, &a.tiles, 0, row, 0, first / kMapLineBytes, barrier);
  }
#endif
  const int64_t row_bytes = T::RowBytes(a.in);
  const unsigned char* const from =
      (kFp8 ? a.codes : reinterpret_cast<const unsigned char*>(a.weight)) + first;
  const int units = static_cast<int>(min(int64_t{kTileCols * T::kBytes}, row_bytes - first)) / 16;
  for (int r = Warp() - kConsumerWarps; r < a.tile_rows; r += kCopyWarps) {
    const int half = r / a.group_rows, output = r - half * a.group_rows;
    if (output >= outputs) continue;
    const unsigned char* const of_row = from + (int64_t{half} * a.out + row + output) * row_bytes;
    for (int unit = Lane(); unit < units; unit += kWarp) {
      const int line = unit / kLineUnits * a.tile_rows + r;
      CopyAsync16(SharedAddress(to) + (line * kLineUnits + (unit ^ line) % kLineUnits) * 16,
                  of_row + unit * 16);
    }
  }
  ArriveWhenCopied(barrier);
}

// All tiles of the outputs [first, last), a tile's outputs at a time from left to right.
template <bool kFp8>
__device__ __forceinline__ void CopyWeights(const SmallBatchGemmArguments& a, const Ring& ring,
                                            int first, int last) {
  RingPlace at, arrived;
  int tile = 0;
  for (int row = first; row < last; row += a.group_rows) {
    for (int col = 0; col < a.in; col += kTileCols, ++tile) {
      if (tile >= Tiles<kFp8>::kUnderWay) {
        while (!ring.full[arrived.stage].HasEnded(arrived.parity)) {
        }
        arrived.Advance(a.stages);
      }
      while (!ring.empty[at.stage].HasEnded(at.parity ^ 1)) {
      }
      CopyTile<kFp8>(a, row, min(a.group_rows, last - row), col, ring.At(at.stage),
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
  for (int i = 0; i < 4; ++i) a[i] = WidenPair(Fp8Pair(w[step / 2][step % 2 * 2 + i % 2], i >= 2));
}

// Takes a multiplying warp's chunks of a block's tiles out of the ring, one after the other.
template <bool kFp8>
class TileReader {
 public:
  __device__ __forceinline__ TileReader(const SmallBatchGemmArguments& a, const Ring& ring,
                                        int rows)
      : a_(a),
        ring_(ring),
        from_(SharedAddress(ring.memory) + PlaceOfLane(a)),
        left_((rows + a.group_rows - 1) / a.group_rows * ((a.in + kTileCols - 1) / kTileCols)) {}

  // The next tile's; past the last one that one's again. What lies past the last row or column is
  // not used.
  __device__ __forceinline__ void Take(Fragments<kFp8>& w) {
    while (!ring_.full[at_.stage].HasEnded(at_.parity)) {
    }
    const uint32_t from = from_ + at_.stage * a_.tile_bytes;
#pragma unroll
    for (int i = 0; i < Tiles<kFp8>::kLoads; ++i) LoadMatrices(w[i], from ^ i * 32);
    __syncwarp();
    if (Lane() == 0) ring_.empty[at_.stage].Arrive();
    if (--left_ > 0) at_.Advance(a_.stages);
  }

 private:
  // The first unit that the lane loads: of a row of the tile, or of the last one.
  __device__ __forceinline__ static int PlaceOfLane(const SmallBatchGemmArguments& a) {
    const int m = Lane() % kTileRows, half = a.gated ? m / kHalfRows : 0;
    const int row = half * a.group_rows + min(m - half * kHalfRows, a.group_rows - 1);
    const int unit = Warp() * kChunkCols * Tiles<kFp8>::kBytes / 16 + Lane() / kTileRows;
    const int line = unit / kLineUnits * a.tile_rows + row;
    return (line * kLineUnits + (unit ^ line) % kLineUnits) * 16;
  }

  const SmallBatchGemmArguments& a_;
  const Ring& ring_;
  const uint32_t from_;  // the lane's first unit in stage 0
  int left_;             // tiles from the next one on
  RingPlace at_;
};

}  // namespace fox::cuda::small_batch
