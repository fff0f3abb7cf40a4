// The tiles of W that a block of SmallBatchGemm multiplies: the kernel's arguments, its shared
// memory, and the ring through which two warps hand tiles to eight others. Read small_batch_gemm.cu
// first.
#pragma once

#include <cuda_bf16.h>

#include <algorithm>
#include <cstdint>

#include "kernels/batch_view.h"
#include "kernels/cuda/linear/gemm_arguments.cuh"
#include "kernels/cuda/linear/input_transform.cuh"
#include "kernels/cuda/primitives/copy_rows.cuh"
#include "kernels/cuda/primitives/warp.cuh"
#include "kernels/cuda/ptx/mbarrier.cuh"
#include "kernels/cuda/ptx/mma_sm80.cuh"

namespace fox::cuda::small_batch_gemm {

constexpr int kConsumers = kTransformThreads;
constexpr int kConsumerWarps = kConsumers / kWarp;
// Further warps copy, each every other row of a tile: the copy engine is given a row at a time, and
// one warp alone would not keep ahead of the memory by much.
constexpr int kCopyWarps = 2;
constexpr int kThreads = kConsumers + kCopyWarps * kWarp;
constexpr int kMaxRows = static_cast<int>(kSmallBatchRows);
constexpr int kTileRows = 16;
// Of a product whose halves become one a tile has as many rows of the gate as of the value, and
// four tiles, for neighbouring outputs, come before the next columns'.
constexpr int kHalfRows = kTileRows / 2;
constexpr int kSideBySide = 4;
template <bool kGated>
constexpr int kTileOutputs = kGated ? kHalfRows : kTileRows;
constexpr int kChunkCols = 64;  // of a warp
constexpr int kTileCols = kConsumerWarps * kChunkCols;
constexpr int kStep = 16;  // columns of one tensor core product
constexpr int kChunkSteps = kChunkCols / kStep;
static_assert(kConsumerWarps == 8);  // the classes of columns
// 16 bytes more than the columns, so that ldmatrix finds eight rows in different banks.
constexpr int kPad = 16;
constexpr int kTileStride = kTileCols * 2 + kPad;
constexpr int kGroupValues = kTileRows * kMaxRows;  // outputs of 16 rows of W
constexpr int kPartialBytes = 2 * kConsumerWarps * kGroupValues * static_cast<int>(sizeof(float));
constexpr int kMaxStages = 16;
constexpr int kBarrierBytes = 2 * kMaxStages * static_cast<int>(sizeof(Mbarrier));
// Tiles that a block has under way. Enough to keep the memory busy; more would only make everybody
// else's loads wait, those of the kernel before among them.
constexpr int kTilesUnderWay = 3;

struct SmallBatchGemmArguments : GemmArguments {
  TransformArguments source;
  // Of a product inside a chain, else null: its input as the product before leaves it, its output
  // as the next one takes it, in flagged words (flagged_words.cuh): a float32 each or two bf16.
  const uint64_t* taken;
  uint64_t* left;
  Activation act;  // kGated: `out` counts the outputs, half of W's rows
  // Of a block's outputs, in groups of `group`; the first `extra_blocks` blocks have one more.
  int block_groups, extra_blocks, group;
  // The same in all products of a chain:
  int stages;
  int tile_bytes;
  int widest;  // columns of an input, at most
};

// Products that follow each other in one launch.
template <int kProducts>
struct ChainArguments {
  SmallBatchGemmArguments products[kProducts];
  uint32_t* epoch;  // the last launch's
};

// Shared memory: [stages] tiles, input rows, partial sums [2][warps][4 rows][16], barriers, the
// rows' sums of squares and scales.
__host__ __device__ constexpr int InputStride(int in) { return in * 2 + kPad; }
// The input of a tile's columns past the end is loaded, too.
__host__ __device__ constexpr int InputBytes(int rows, int in) {
  return rows * InputStride(in) + (kTileCols - 1 - (in - 1) % kTileCols) * 2;
}
__host__ __device__ constexpr int FixedBytes(int rows, int in) {
  return InputBytes(rows, in) + kPartialBytes + kBarrierBytes +
         rows * transform::NormFloats(in) * static_cast<int>(sizeof(float));
}

struct SharedLayout {
  unsigned char* tiles;
  unsigned char* input;
  float* partial;
  Mbarrier* full;
  Mbarrier* empty;
  float* norms;  // [rows, NormFloats]
};

__device__ __forceinline__ SharedLayout LayoutOf(unsigned char* shared,
                                                 const SmallBatchGemmArguments& a) {
  SharedLayout layout;
  layout.tiles = shared;
  layout.input = shared + a.stages * a.tile_bytes;
  layout.partial = reinterpret_cast<float*>(layout.input + InputBytes(a.rows, a.widest));
  layout.full = reinterpret_cast<Mbarrier*>(layout.partial + kPartialBytes / sizeof(float));
  layout.empty = layout.full + kMaxStages;
  layout.norms = reinterpret_cast<float*>(layout.empty + kMaxStages);
  return layout;
}

// A place in the ring of tiles.
struct PipelineState {
  int stage = 0;
  uint32_t parity = 0;

  __device__ __forceinline__ void Advance(int stages) {
    if (++stage == stages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

// The outputs that are a block's.
struct BlockOutputs {
  int first, last;

  __device__ __forceinline__ explicit BlockOutputs(const SmallBatchGemmArguments& a) {
    const int block = static_cast<int>(blockIdx.x);
    first = (block * a.block_groups + min(block, a.extra_blocks)) * a.group;
    last = first + (a.block_groups + (block < a.extra_blocks ? 1 : 0)) * a.group;
  }
};

// Where a copying warp is in the ring: its next tile, and the oldest one that is under way.
struct CopyState {
  PipelineState at, arrived;
  int tile = 0;
};

// A copying warp: its rows of all the block's tiles, every second one or one half.
template <bool kGated>
__device__ __forceinline__ void CopyWeights(const SmallBatchGemmArguments& a,
                                            const SharedLayout& layout, CopyState& state) {
  constexpr int kOutputs = kTileOutputs<kGated>;
  constexpr int kPassOutputs = kGated ? kSideBySide * kOutputs : kOutputs;
  constexpr int kRowStep = kGated ? 1 : kCopyWarps;
  const int warp = Warp() - kConsumerWarps;
  const int begin = kGated ? warp * kHalfRows : warp;  // in the tile
  const __nv_bfloat16* weight = a.weight + static_cast<int64_t>(warp * (kGated ? a.out : 1)) * a.in;
  const auto [first, last] = BlockOutputs(a);
  const auto copy = [&, last = last](int output, int col) {
    PipelineState& at = state.at;
    const int rows = kGated ? min(kHalfRows, last - output)
                            : (min(kTileRows, last - output) - warp + kCopyWarps - 1) / kCopyWarps;
    if (state.tile++ >= kTilesUnderWay) {
      while (!layout.full[state.arrived.stage].HasEnded(state.arrived.parity)) {
      }
      state.arrived.Advance(a.stages);
    }
    while (!layout.empty[at.stage].HasEnded(at.parity ^ 1)) {
    }
    BulkCopyRows(weight + static_cast<int64_t>(output) * a.in + col, int64_t{2} * kRowStep * a.in,
                 layout.tiles + at.stage * a.tile_bytes + begin * kTileStride,
                 kRowStep * kTileStride, rows, min(kTileCols, a.in - col) * 2,
                 &layout.full[at.stage]);
    at.Advance(a.stages);
  };
  for (int pass = first; pass < last; pass += kPassOutputs) {
    for (int col = 0; col < a.in; col += kTileCols) {
      for (int output = pass; output < min(pass + kPassOutputs, last); output += kOutputs) {
        copy(output, col);
      }
    }
  }
}

// A warp's chunk of a tile of W, as the tensor cores want it.
using Fragments = uint32_t[kChunkSteps][4];

// Takes a multiplying warp's chunks of a product's tiles out of the ring, one after the other.
class TileReader {
 public:
  // `lane`, `warp`: the thread's.
  __device__ __forceinline__ TileReader(const SmallBatchGemmArguments& a,
                                        const SharedLayout& layout, int tiles, PipelineState at,
                                        int lane, int warp)
      : a_(a),
        layout_(layout),
        from_(SharedAddress(layout.tiles) +
              min(lane % 16, a.tile_bytes / kTileStride - 1) * kTileStride + warp * kChunkCols * 2 +
              lane / 16 * 16),
        left_(tiles),
        at_(at) {}

  // The next tile's, if there is one. What lies past the last row or column is not used.
  __device__ __forceinline__ void Take(Fragments& w) {
    if (left_ == 0) return;
    --left_;
    while (!layout_.full[at_.stage].HasEnded(at_.parity)) {
    }
#pragma unroll
    for (int i = 0; i < kChunkSteps; ++i) {
      LoadMatrices(w[i], from_ + at_.stage * a_.tile_bytes + i * kStep * 2);
    }
    __syncwarp();
    if (Lane() == 0) layout_.empty[at_.stage].Arrive();
    at_.Advance(a_.stages);
  }

  // Where the next product's tiles begin, after the last one.
  __device__ __forceinline__ PipelineState at() const { return at_; }

 private:
  const SmallBatchGemmArguments& a_;
  const SharedLayout& layout_;
  const uint32_t from_;  // the lane's row and column in stage 0
  int left_;
  PipelineState at_;
};

}  // namespace fox::cuda::small_batch_gemm
