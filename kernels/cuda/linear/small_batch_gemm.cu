// One block an SM owns a contiguous range of W's rows and streams it through a ring of
// tiles in shared memory, 16 rows by 768 columns: two warps copy, from before the previous kernel
// has ended; eight warps first take the first tiles into registers and transform the input rows,
// then share a tile's columns among them. Tensor cores multiply, for four rows at a time would be
// too much arithmetic for the FP32 units: W is the operand of 16 rows, the input rows are the one
// of 8 (the rest are repeats, unused). Sums: each warp over its columns, then the warps in order;
// the same for any number of rows.
#include <cuda_bf16.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "kernels/core/check.h"
#include "kernels/cuda/linear/gemm_arguments.cuh"
#include "kernels/cuda/linear/input_transform.cuh"
#include "kernels/cuda/linear/small_batch_gemm.h"
#include "kernels/cuda/primitives/copy_rows.cuh"
#include "kernels/cuda/primitives/warp.cuh"
#include "kernels/cuda/ptx/dependent_launch.cuh"
#include "kernels/cuda/ptx/mbarrier.cuh"
#include "kernels/cuda/ptx/mma_sm80.cuh"
#include "kernels/cuda/ptx/named_barrier.cuh"
#include "kernels/cuda/runtime/launch.h"

namespace fox::cuda {
namespace {

constexpr int kConsumers = kTransformThreads;
constexpr int kConsumerWarps = kConsumers / kWarp;
// Further warps copy, each every other row of a tile: the copy engine is given a row at a time, and
// one warp alone would not keep ahead of the memory by much.
constexpr int kCopyWarps = 2;
constexpr int kThreads = kConsumers + kCopyWarps * kWarp;
constexpr int kMaxRows = static_cast<int>(kMaxGemvRows);
constexpr int kTileRows = 16;
constexpr int kTileCols = 768;
constexpr int kStep = 16;  // columns of one tensor core product
constexpr int kWarpSteps = kTileCols / kStep / kConsumerWarps;
// 16 bytes more than the columns, so that ldmatrix finds eight rows in different banks.
constexpr int kPad = 16;
constexpr int kTileStride = kTileCols * 2 + kPad;
constexpr int kGroupValues = kTileRows * kMaxRows;  // outputs of 16 rows of W
constexpr int kPartialBytes = 2 * kConsumerWarps * kGroupValues * static_cast<int>(sizeof(float));
constexpr int kMaxStages = 16;
constexpr int kBarrierBytes = 2 * kMaxStages * static_cast<int>(sizeof(Mbarrier));
// Blocks of this product and the next share an SM's 228 KiB (each costs 1 KiB more),
// with attention's between. What is in shared memory before the wait need not be fetched after it,
// so a wide product, which follows a narrow one that adds to the residual stream, gets most of it.
constexpr int kWideBudget = 150 * 1024;
constexpr int kNarrowBudget = 75 * 1024;
constexpr int kMinStages = 3;
// Tiles that a block has under way. Enough to keep the memory busy; more would only make everybody
// else's loads wait, those of the kernel before among them.
constexpr int kTilesUnderWay = 2;
constexpr int kReservedBytes = 1024;  // for the transform's static memory

struct SmallBatchGemmArguments : GemmArguments {
  TransformArguments source;
  int block_rows;  // of W; the first `extra_blocks` blocks have one more
  int extra_blocks;
  int stages;
  int tile_bytes;
};

// Shared memory: [stages] tiles, input rows, partial sums [2][warps][4 rows][16], barriers.
__host__ __device__ constexpr int InputStride(int in) { return in * 2 + kPad; }
// A product's columns past the last row's end may be read.
__host__ __device__ constexpr int InputBytes(int rows, int in) {
  return rows * InputStride(in) + kStep * 2 - kPad;
}
__host__ __device__ constexpr int FixedBytes(int rows, int in) {
  return InputBytes(rows, in) + kPartialBytes + kBarrierBytes;
}

struct SharedLayout {
  unsigned char* tiles;
  unsigned char* input;
  float* partial;
  Mbarrier* full;
  Mbarrier* empty;
};

__device__ __forceinline__ SharedLayout LayoutOf(unsigned char* shared,
                                                 const SmallBatchGemmArguments& a) {
  SharedLayout layout;
  layout.tiles = shared;
  layout.input = shared + a.stages * a.tile_bytes;
  layout.partial = reinterpret_cast<float*>(layout.input + InputBytes(a.rows, a.in));
  layout.full = reinterpret_cast<Mbarrier*>(layout.partial + kPartialBytes / sizeof(float));
  layout.empty = layout.full + kMaxStages;
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

// A copying warp: its rows of all tiles of W's rows [first, last), 16 rows at a time from left to
// right.
__device__ __forceinline__ void CopyWeights(const SmallBatchGemmArguments& a,
                                            const SharedLayout& layout, int first, int last) {
  const int begin = Warp() - kConsumerWarps;
  PipelineState at, arrived;
  int tile = 0;
  for (int row = first; row < last; row += kTileRows) {
    const int rows = (min(kTileRows, last - row) - begin + kCopyWarps - 1) / kCopyWarps;
    for (int col = 0; col < a.in; col += kTileCols, ++tile) {
      if (tile >= kTilesUnderWay) {
        while (!layout.full[arrived.stage].HasEnded(arrived.parity)) {
        }
        arrived.Advance(a.stages);
      }
      while (!layout.empty[at.stage].HasEnded(at.parity ^ 1)) {
      }
      BulkCopyRows(
          a.weight + static_cast<int64_t>(row + begin) * a.in + col, int64_t{2} * kCopyWarps * a.in,
          layout.tiles + at.stage * a.tile_bytes + begin * kTileStride, kCopyWarps * kTileStride,
          rows, min(kTileCols, a.in - col) * 2, &layout.full[at.stage]);
      at.Advance(a.stages);
    }
  }
}

// One output of a group of 16: the thread's row of the batch and, in the group, row of W.
struct Output {
  int n = static_cast<int>(threadIdx.x) / kTileRows;
  int m = static_cast<int>(threadIdx.x) % kTileRows;
};

// What y holds before. Read long before it is used, so no arithmetic here.
__device__ __forceinline__ float PreviousValue(const SmallBatchGemmArguments& a, int row,
                                               int last) {
  const Output o;
  if (!a.accumulate || o.n >= a.rows || row + o.m >= last) return 0;
  return a.y_f32[o.n * a.y_stride + row + o.m];
}

__device__ __forceinline__ void StoreValue(const SmallBatchGemmArguments& a, const float* partial,
                                           float previous, int row, int last) {
  const Output o;
  if (o.n >= a.rows || row + o.m >= last) return;
  float sum = 0;
#pragma unroll
  for (int w = 0; w < kConsumerWarps; ++w) sum += partial[w * kGroupValues + threadIdx.x];
  if (a.bias != nullptr) sum += a.bias[row + o.m];
  const int64_t at = o.n * a.y_stride + row + o.m;
  if (a.y_f32 != nullptr) {
    a.y_f32[at] = sum + previous;
  } else {
    a.y_bf16[at] = __float2bfloat16_rn(sum);
  }
}

// A warp's share of a tile of W, as the tensor cores want it.
using Fragments = uint32_t[kWarpSteps][4];

// The warp's columns of the tile that begins at column `col`.
struct Share {
  int steps;   // products
  int column;  // first, in the tile

  __device__ __forceinline__ Share(const SmallBatchGemmArguments& a, int col) {
    const int all = min(kTileCols, a.in - col) / kStep;
    const int share = (all + kConsumerWarps - 1) / kConsumerWarps;
    const int begin = Warp() * share;
    steps = min(share, all - begin);
    column = begin * kStep;
  }
};

// Of the tile with `rows` rows in stage `stage`.
__device__ __forceinline__ void LoadFragments(const SmallBatchGemmArguments& a,
                                              const SharedLayout& layout, int stage, int rows,
                                              const Share& share, Fragments& w) {
  const int lane = Lane();
  const uint32_t from = SharedAddress(layout.tiles) + stage * a.tile_bytes +
                        min(lane % 16, rows - 1) * kTileStride + share.column * 2 + lane / 16 * 16;
#pragma unroll
  for (int i = 0; i < kWarpSteps; ++i) {
    if (i < share.steps) LoadMatrices(w[i], from + i * kStep * 2);
  }
}

// c += the warp's products of the tile that begins at column `col`. Input is loaded for two of them
// at a time; what lies behind an odd last one (input, or nothing: InputBytes) is not used.
__device__ __forceinline__ void MultiplyFragments(const SmallBatchGemmArguments& a,
                                                  const SharedLayout& layout, int col,
                                                  const Fragments& w, float (&c)[2][4]) {
  static_assert(kWarpSteps % 2 == 0);
  const Share share(a, col);
  const int lane = Lane();
  const uint32_t from = SharedAddress(layout.input) +
                        min(lane % 8, a.rows - 1) * InputStride(a.in) + (col + share.column) * 2 +
                        lane / 8 * 16;
  uint32_t x[kWarpSteps / 2][4];
#pragma unroll
  for (int i = 0; i < kWarpSteps / 2; ++i) {
    if (2 * i < share.steps) LoadMatrices(x[i], from + i * 2 * kStep * 2);
  }
#pragma unroll
  for (int i = 0; i < kWarpSteps; ++i) {
    const int at = i % 2 * 2;
    if (i < share.steps) MultiplyAdd(c[i % 2], w[i], x[i / 2][at], x[i / 2][at + 1]);
  }
}

// A block's walk over its tiles, 16 rows at a time from left to right. A group's partial sums lie
// in one of two buffers in turn, so that one barrier a group suffices: a buffer is written again
// only after the next group's barrier.
class Walk {
 public:
  __device__ __forceinline__ Walk(const SmallBatchGemmArguments& a, const SharedLayout& layout,
                                  int first, int last)
      : a_(a), layout_(layout), row_(first), last_(last), partial_(layout.partial) {}

  __device__ __forceinline__ bool AtEnd() const { return row_ >= last_; }

  // Takes the warp's share of the current tile out of its stage.
  __device__ __forceinline__ void Take(PipelineState& at, Fragments& w) const {
    while (!layout_.full[at.stage].HasEnded(at.parity)) {
    }
    LoadFragments(a_, layout_, at.stage, min(kTileRows, last_ - row_), Share(a_, col_), w);
    __syncwarp();
    if (Lane() == 0) layout_.empty[at.stage].Arrive();
    at.Advance(a_.stages);
  }

  // To the next tile without multiplying. Returns whether that begins a group.
  __device__ __forceinline__ bool Advance() {
    col_ += kTileCols;
    if (col_ < a_.in) return false;
    col_ = 0;
    row_ += kTileRows;
    return true;
  }

  // Adds the tile's products, stores the group's outputs if it is its last, and goes on.
  // `previous`: what y holds before, of the current group.
  __device__ __forceinline__ void Multiply(const Fragments& w, float& previous) {
    MultiplyFragments(a_, layout_, col_, w, c_);
    const int row = row_;
    if (!Advance()) return;
    const int lane = Lane();
    if (lane % 4 < kMaxRows / 2) {
      const int warp = Warp();
      float* mine = partial_ + warp * kGroupValues + lane % 4 * 2 * kTileRows + lane / 4;
      mine[0] = c_[0][0] + c_[1][0];
      mine[kTileRows] = c_[0][1] + c_[1][1];
      mine[kTileRows / 2] = c_[0][2] + c_[1][2];
      mine[kTileRows + kTileRows / 2] = c_[0][3] + c_[1][3];
    }
    SyncThreads<kConsumers>();
    StoreValue(a_, partial_, previous, row, last_);
    previous = PreviousValue(a_, row_, last_);
    partial_ = partial_ == layout_.partial ? layout_.partial + kConsumerWarps * kGroupValues
                                           : layout_.partial;
#pragma unroll
    for (float(&half)[4] : c_) half[0] = half[1] = half[2] = half[3] = 0;
  }

 private:
  const SmallBatchGemmArguments& a_;
  const SharedLayout& layout_;
  int row_, last_, col_ = 0;
  float* partial_;
  float c_[2][4] = {};
};

// The weights of a block's first tiles, in registers before the input is there: their stages are
// filled again meanwhile.
template <int kTiles>
struct HeldTiles {
  Fragments w[kTiles > 0 ? kTiles : 1];

  __device__ __forceinline__ void Take(Walk walk, PipelineState& at) {
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      if (walk.AtEnd()) break;
      walk.Take(at, w[n]);
      walk.Advance();
    }
  }
};

// The multiplying warps.
template <int kTiles>
__device__ __forceinline__ void MultiplyRows(Walk walk, const HeldTiles<kTiles>& held,
                                             PipelineState at, float previous) {
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
    if (walk.AtEnd()) return;
    walk.Multiply(held.w[n], previous);
  }
#pragma unroll 1
  while (!walk.AtEnd()) {
    Fragments w;
    walk.Take(at, w);
    walk.Multiply(w, previous);
  }
}

// What the kinds of transforms read: norms the residual stream, all others activations.
template <InputTransform::Kind kind>
using InputOf = std::conditional_t<kind == InputTransform::Kind::kRmsNorm, float, __nv_bfloat16>;

// For at most kRows rows.
template <InputTransform::Kind kind, int kRows>
__global__ void __launch_bounds__(kThreads, 2)
    SmallBatchGemmKernel(const __grid_constant__ SmallBatchGemmArguments a) {
  constexpr bool kNorms = kind == InputTransform::Kind::kRmsNorm;
  extern __shared__ __align__(128) unsigned char shared[];
  if (kind != kDrainingKind) TriggerDependents();
  const SharedLayout layout = LayoutOf(shared, a);
  const int block = static_cast<int>(blockIdx.x);
  const int first = block * a.block_rows + min(block, a.extra_blocks);
  const int last = first + a.block_rows + (block < a.extra_blocks ? 1 : 0);
  if (threadIdx.x == kConsumers) {
#pragma unroll 1
    for (int s = 0; s < a.stages; ++s) {
      layout.full[s].Init(kCopyWarps * BulkCopyRowsArrivals());
      layout.empty[s].Init(kConsumerWarps);
    }
    PublishBarriers();
    FenceAsyncProxy();
  }
  __syncthreads();
  if (threadIdx.x >= kConsumers) {
    CopyWeights(a, layout, first, last);
    return;
  }
  const Walk walk(a, layout, first, last);
  // As many as registers allow.
  constexpr int kHeld = kRows == 1 ? 2 : kNorms ? 0 : 1;
  HeldTiles<kHeld> held;
  PipelineState at;
  __nv_bfloat16* const input = reinterpret_cast<__nv_bfloat16*>(layout.input);
  const int stride = InputStride(a.in) / 2;
  float previous;
  if constexpr (kNorms) {
    const transform::Unit weight = transform::FirstWeight(a.source);
    held.Take(walk, at);
    WaitOnDependencies();
    TriggerDependents();  // not before: see kDrainingKind
    previous = PreviousValue(a, first, last);
    transform::NormRows<InputOf<kind>, kRows>(a.source, weight, 0, a.rows, input, stride);
  } else {
    PrefetchTransform(a.source);
    held.Take(walk, at);
    WaitOnDependencies();
    previous = PreviousValue(a, first, last);
    TransformRowsInBlock<kind, InputOf<kind>, kRows>(a.source, 0, a.rows, input, stride);
  }
  SyncThreads<kConsumers>();
  MultiplyRows(walk, held, at, previous);
}

// Divides W's rows among the blocks and gives the ring as many tiles as a block has, the budget
// holds and the barriers serve.
void ChooseTiling(int blocks, const DeviceLimits& limits, SmallBatchGemmArguments* a) {
  a->block_rows = a->out / blocks;
  a->extra_blocks = a->out % blocks;
  const int most_rows = a->block_rows + (a->extra_blocks > 0 ? 1 : 0);
  a->tile_bytes = std::min(kTileRows, most_rows) * kTileStride;
  const int64_t tiles = static_cast<int64_t>((most_rows + kTileRows - 1) / kTileRows) *
                        ((a->in + kTileCols - 1) / kTileCols);
  const int budget = std::min(a->accumulate ? kNarrowBudget : kWideBudget,
                              limits.block_shared_bytes - kReservedBytes);
  const int fitting = std::max((budget - FixedBytes(a->rows, a->in)) / a->tile_bytes, kMinStages);
  a->stages = static_cast<int>(std::min<int64_t>({tiles, fitting, kMaxStages}));
}

template <InputTransform::Kind kind, int kRows>
cudaError_t LaunchSmallBatchGemm(const SmallBatchGemmArguments& a, int blocks,
                                 const DeviceLimits& limits, cudaStream_t stream) {
  const cudaError_t ready = AllowDynamicSmem(KernelAddress(SmallBatchGemmKernel<kind, kRows>),
                                             limits.block_shared_bytes - kReservedBytes);
  if (ready != cudaSuccess) return ready;
  const size_t bytes = static_cast<size_t>(a.stages * a.tile_bytes + FixedBytes(a.rows, a.in));
  return Launch(SmallBatchGemmKernel<kind, kRows>, dim3(static_cast<unsigned>(blocks)),
                dim3(kThreads), SmemConfig(bytes, true), stream, a);
}

}  // namespace

bool GemvTakes(const LinearParams& params, const DeviceLimits& limits) {
  const MatrixView& in = params.in;
  const int64_t columns = params.weight.in();
  const bool norm = params.transform.kind == InputTransform::Kind::kRmsNorm;
  if (in.rows < 1 || in.rows > kMaxGemvRows || in.dtype != (norm ? DType::kF32 : DType::kBF16)) {
    return false;
  }
  if (columns % kStep != 0 || columns > limits.block_shared_bytes) return false;
  const int most = FixedBytes(kMaxRows, static_cast<int>(columns)) +
                   kMinStages * kTileRows * kTileStride + kReservedBytes;
  return most <= limits.block_shared_bytes;
}

cudaError_t SmallBatchGemm(const LinearParams& params, const DeviceLimits& limits,
                           cudaStream_t stream) {
  FOX_CHECK(GemvTakes(params, limits));
  const InputTransform::Kind transform = params.transform.kind;
  SmallBatchGemmArguments a{};
  static_cast<GemmArguments&>(a) = MakeGemmArguments(params);
  a.source = MakeTransformArguments(params.in, params.transform);
  FOX_CHECK(a.source.out_cols == a.in);
  const int blocks = std::min(limits.multiprocessors, a.out);
  ChooseTiling(blocks, limits, &a);
  return DispatchTransform(
      transform, params.in.dtype, [&]<InputTransform::Kind kind, typename In>() {
        if constexpr (std::is_same_v<In, InputOf<kind>>) {
          return a.rows == 1 ? LaunchSmallBatchGemm<kind, 1>(a, blocks, limits, stream)
                             : LaunchSmallBatchGemm<kind, kMaxRows>(a, blocks, limits, stream);
        }
        return cudaErrorInvalidValue;
      });
}

}  // namespace fox::cuda
