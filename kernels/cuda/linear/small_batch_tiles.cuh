// Tiles of W of small_batch_gemm.cu, in bf16 or in 8 bits, from global memory through the ring into
// the registers of the warps that multiply them. A tile has the rows of a set of outputs: a group
// of 16 or, in 8 bits, up to four; and a chunk of 64 columns for each of the eight warps or, if it
// has more than two groups, of four. It lies in lines of 128 bytes: the first line of all its rows,
// then the second one; the 16-byte units of a line are swizzled by the number of the line, as TMA
// does, so that ldmatrix finds eight rows in different banks.
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
// Warps that copy, beside the multiplying ones: if by boxes, one thread; if by rows, all of them.
inline constexpr int kCopyWarps = 2;
inline constexpr int kThreads = kConsumers + kCopyWarps * kWarp;
inline constexpr int kGroupRows = 16;
inline constexpr int kHalfRows = kGroupRows / 2;  // of either half of W, where the product is gated
inline constexpr int kMaxGroups = 4;              // of a set
inline constexpr int kChunkCols = 64;             // of a warp
inline constexpr int kStepCols = kConsumerWarps * kChunkCols;
inline constexpr int kStep = 16;  // columns of one tensor core product
inline constexpr int kChunkSteps = kChunkCols / kStep;
static_assert(kConsumerWarps == 8 && kStep == kFp8Step);  // the classes of columns
inline constexpr int kLineUnits = kMapLineBytes / 16;
inline constexpr int kTileAlignment = 1024;  // the swizzle repeats

template <bool kFp8>
struct Tiles {
  static constexpr int kBytes = kFp8 ? 1 : 2;              // of a weight
  static constexpr int kLoads = kChunkCols * kBytes / 32;  // ldmatrix, of a chunk of 16 rows
  // Tiles that a block has under way. Enough to keep the memory busy; more would only make all
  // other loads wait, the previous kernel's among them.
  static constexpr int UnderWay(int tile_bytes) { return kFp8 ? 64 * 1024 / tile_bytes : 3; }
  // Stages of the smallest ring; in 8 bits as many as TileReader::Advance wants.
  static constexpr int kMinStages = kFp8 ? 2 : 4;

  __host__ __device__ static constexpr int64_t RowBytes(int in) {
    return kFp8 ? Fp8Stride(in) : int64_t{in} * kBytes;
  }
  // Lines of a tile of `chunks` chunks.
  __host__ __device__ static constexpr int Lines(int chunks) {
    return chunks * kChunkCols * kBytes / kMapLineBytes;
  }
  // Bytes of a tile in the ring.
  __host__ __device__ static constexpr int Bytes(int rows, int chunks) {
    const int bytes = rows * Lines(chunks) * kMapLineBytes;
    return (bytes + kTileAlignment - 1) / kTileAlignment * kTileAlignment;
  }
};

// Chunks of a tile of `groups` groups, so that the tile has at most kMaxTileBytes: with half of
// that in 8 bits, the copying thread took as long for its tiles as the memory.
constexpr int ChunksOf(int groups) { return kConsumerWarps / (groups <= 2 ? 1 : 2); }
inline constexpr int kMaxTileBytes = 16 * 1024;
static_assert(Tiles<false>::Bytes(kGroupRows, ChunksOf(1)) <= kMaxTileBytes &&
              Tiles<true>::Bytes(2 * kGroupRows, ChunksOf(2)) <= kMaxTileBytes &&
              Tiles<true>::Bytes(kMaxGroups * kGroupRows, ChunksOf(kMaxGroups)) <= kMaxTileBytes);
static_assert(kConsumerWarps / ChunksOf(kMaxGroups) <= Tiles<true>::kMinStages);

struct SmallBatchGemmArguments : GemmArguments {
  InputRows input;
  CUtensorMap tiles;  // W in boxes of a tile
  bool by_rows;       // not by boxes: no Hopper, or W's rows are no whole lines
  int set_rows;       // outputs of a tile's rows
  int groups;         // operands of 16 rows of W that these are
  int chunks;         // of a tile's columns
  int tile_rows;      // of W: set_rows, or of either half as many
  int block_rows;     // outputs of a block but the last
  int blocks;
  int stages;
  int under_way;  // tiles
  int tile_bytes;
};

// Number of steps in which all columns are multiplied: in each step, every warp multiplies one
// chunk.
__host__ __device__ __forceinline__ int Steps(const SmallBatchGemmArguments& a) {
  return (a.in + kStepCols - 1) / kStepCols;
}

// Number of arrivals that fill a stage; below, true in the copying threads that arrive.
__device__ __forceinline__ int TileArrivals(const SmallBatchGemmArguments& a) {
  return a.by_rows ? kCopyWarps * kWarp : 1;
}
__device__ __forceinline__ bool CopiesTiles(const SmallBatchGemmArguments& a) {
  return a.by_rows || threadIdx.x == kConsumers;
}

// Prefetches the description of the boxes; by one thread.
__device__ __forceinline__ void PrefetchBoxes(const SmallBatchGemmArguments& a) {
#if __CUDA_ARCH__ >= 900
  if (!a.by_rows) PrefetchTensorMap(&a.tiles);
#endif
}

// Copies a thread's part of the tile at (row, col) with `outputs` outputs: a box, which has as many
// rows as any tile, or 16-byte units of every second existing row.
template <bool kFp8>
__device__ __forceinline__ void CopyTile(const SmallBatchGemmArguments& a, int row, int outputs,
                                         int col, unsigned char* to, Mbarrier* barrier) {
  using T = Tiles<kFp8>;
  const int first = col * T::kBytes;
#if __CUDA_ARCH__ >= 900
  if (!a.by_rows) {
    barrier->ArriveAndExpect(
        static_cast<uint32_t>(a.tile_rows * T::Lines(a.chunks) * kMapLineBytes));
    return TmaLoad4DOnce(to, &a.tiles, 0, row, 0, first / kMapLineBytes, barrier);
  }
#endif
  const int64_t row_bytes = T::RowBytes(a.in);
  const unsigned char* const from =
      (kFp8 ? a.codes : reinterpret_cast<const unsigned char*>(a.weight)) + first;
  const int units =
      static_cast<int>(min(int64_t{a.chunks * kChunkCols * T::kBytes}, row_bytes - first)) / 16;
  for (int r = Warp() - kConsumerWarps; r < a.tile_rows; r += kCopyWarps) {
    const int half = r / a.set_rows, output = r - half * a.set_rows;
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

// All tiles of the outputs [first, last), a set at a time from left to right.
template <bool kFp8>
__device__ __forceinline__ void CopyWeights(const SmallBatchGemmArguments& a, const Ring& ring,
                                            int first, int last) {
  RingPlace at, arrived;
  int tile = 0;
  const int under_way = min(a.under_way, a.stages);
  const int tile_cols = a.chunks * kChunkCols, cols = Steps(a) * kStepCols;
  for (int row = first; row < last; row += a.set_rows) {
    for (int col = 0; col < cols; col += tile_cols, ++tile) {
      if (tile >= under_way) {
        while (!ring.full[arrived.stage].HasEnded(arrived.parity)) {
        }
        arrived.Advance(a.stages);
      }
      while (!ring.empty[at.stage].HasEnded(at.parity ^ 1)) {
      }
      CopyTile<kFp8>(a, row, min(a.set_rows, last - row), col, ring.At(at.stage),
                     &ring.full[at.stage]);
      at.Advance(a.stages);
    }
  }
}

// 16 rows of a warp's chunk of W, as ldmatrix loads them: the operands of a tensor core product, or
// in 8 bits of two.
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

// Reads a multiplying warp's tiles from the ring: the tiles that have its chunk of a step.
template <bool kFp8, int kGroups>
class TileReader {
 public:
  __device__ __forceinline__ TileReader(const SmallBatchGemmArguments& a, const Ring& ring)
      : a_(a), ring_(ring), from_(SharedAddress(ring.memory) + PlaceOfLane(a)) {
    at_.stage = Warp() / kChunks;
  }

  __device__ __forceinline__ void Wait() const {
    while (!ring_.full[at_.stage].HasEnded(at_.parity)) {
    }
  }
  // Loads the group's rows. Elements past the last row or column are loaded but not used.
  __device__ __forceinline__ void Load(int group, Fragments<kFp8>& w) const {
    const uint32_t from = from_ + at_.stage * a_.tile_bytes +
                          group * (a_.gated ? kHalfRows : kGroupRows) * kMapLineBytes;
#pragma unroll
    for (int i = 0; i < Tiles<kFp8>::kLoads; ++i) LoadMatrices(w[i], from ^ i * 32);
  }
  // Frees the stage. REQUIRES: all groups have been loaded.
  __device__ __forceinline__ void Release() const {
    __syncwarp();
    if (Lane() == 0) ring_.empty[at_.stage].Arrive();
  }
  // Goes to the next step's tile if there are `more`. Without a branch, which would wait for loads
  // on their way.
  __device__ __forceinline__ void Advance(bool more) {
    const int next = at_.stage + (more ? kConsumerWarps / kChunks : 0);
    const bool wraps = next >= a_.stages;
    at_.stage = wraps ? next - a_.stages : next;
    at_.parity ^= wraps ? 1u : 0u;
  }

 private:
  static constexpr int kChunks = ChunksOf(kGroups);  // of a tile

  // The first unit that the lane loads of group 0. Rows past a tile's last one are another tile's,
  // or no rows.
  __device__ __forceinline__ static int PlaceOfLane(const SmallBatchGemmArguments& a) {
    const int m = Lane() % kGroupRows, half = a.gated ? m / kHalfRows : 0;
    const int row = half * a.set_rows + m - half * kHalfRows;
    const int unit = Warp() % kChunks * kChunkCols * Tiles<kFp8>::kBytes / 16 + Lane() / kGroupRows;
    const int line = unit / kLineUnits * a.tile_rows + row;
    return (line * kLineUnits + (unit ^ line) % kLineUnits) * 16;
  }

  const SmallBatchGemmArguments& a_;
  const Ring& ring_;
  const uint32_t from_;  // in stage 0
  RingPlace at_;
};

}  // namespace fox::cuda::small_batch
