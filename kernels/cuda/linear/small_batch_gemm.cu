// One block an SM owns a contiguous range of W's rows and streams it through a ring of tiles in
// shared memory, 16 rows by 512 columns, from before the previous kernel has ended: on Hopper one
// thread copies, a tile at a time (small_batch_tiles.cuh). Eight warps first take the first tiles
// into registers and bring the input rows, then multiply 64 columns of each tile. Tensor cores
// multiply, for four rows at a time would be too much arithmetic for the FP32 units: W is the
// operand of 16 rows, the input rows are the one of 8 (the rest are repeats, unused). With a gate a
// tile has 8 rows of either half of W. Rows of 8 bits are widened in registers, exactly, and their
// sums are multiplied by the rows' powers of two, exactly, too.
//
// Bits (cluster_gemm.md): those of cluster_gemm.cu. A warp adds the chunks of 64 columns whose
// index is its own modulo 8, from left to right in one chain; the warps' sums are added as a tree.
#include <cuda_bf16.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "kernels/core/check.h"
#include "kernels/cuda/linear/device_weight.h"
#include "kernels/cuda/linear/gemm_kernels.h"
#include "kernels/cuda/linear/small_batch_input.cuh"
#include "kernels/cuda/linear/small_batch_tiles.cuh"
#include "kernels/cuda/primitives/ring.cuh"
#include "kernels/cuda/primitives/warp.cuh"
#include "kernels/cuda/ptx/dependent_launch.cuh"
#include "kernels/cuda/ptx/global_memory.cuh"
#include "kernels/cuda/ptx/mbarrier.cuh"
#include "kernels/cuda/ptx/mma_sm80.cuh"
#include "kernels/cuda/ptx/named_barrier.cuh"
#include "kernels/cuda/runtime/launch.h"
#include "kernels/cuda/runtime/tensor_map.h"

namespace fox::cuda {
namespace {

using namespace small_batch;

// Kernels are compiled for at most 1, 4 and 8 rows; the first two lay out 4 rows' outputs.
__host__ __device__ constexpr int SumRows(int rows) { return rows <= 4 ? 4 : 8; }
// Of 16 rows of W.
__host__ __device__ constexpr int PartialFloats(int sum_rows) {
  return kConsumerWarps * kTileRows * sum_rows;
}
constexpr int kMaxStages = 16;
constexpr int kBarrierBytes = 2 * kMaxStages * static_cast<int>(sizeof(Mbarrier));
// Blocks of this product and the next share an SM's 228 KiB (each costs 1 KiB more),
// with attention's between. What is in shared memory before the wait need not be fetched after it,
// so a wide product, which follows a narrow one that adds to the residual stream, gets most of it.
constexpr int kWideBudget = 150 * 1024;
constexpr int kNarrowBudget = 75 * 1024;
// Of a block that reads more than this: beside it, the next product's would have its ring full long
// before the wait. Without room it fills the ring while it waits, when nothing else is read.
constexpr int kLongShare = 240 * 1024;
constexpr int kLongBudget = 200 * 1024;

// Shared memory: [stages] tiles, input rows, partial sums [2][warps][SumRows][16], barriers, the
// rows' sums of squares and scales.
// A row and 16 bytes, so that ldmatrix finds eight rows in different banks.
__host__ __device__ constexpr int InputStride(int in) { return in * 2 + 16; }
// The input of a tile's columns past the end is loaded, too.
__host__ __device__ constexpr int InputBytes(int rows, int in) {
  return rows * InputStride(in) + (kTileCols - 1 - (in - 1) % kTileCols) * 2;
}
__host__ __device__ constexpr int FixedBytes(int rows, int in) {
  return InputBytes(rows, in) + kBarrierBytes +
         (2 * PartialFloats(SumRows(rows)) + rows * NormFloats(in)) *
             static_cast<int>(sizeof(float));
}

struct SharedLayout {
  Ring tiles;
  unsigned char* input;
  float* partial;
  float* norms;  // [rows, NormFloats]
};

template <int kRows>
__device__ __forceinline__ SharedLayout LayoutOf(unsigned char* shared,
                                                 const SmallBatchGemmArguments& a) {
  SharedLayout layout;
  layout.input = shared + a.stages * a.tile_bytes;
  layout.partial = reinterpret_cast<float*>(layout.input + InputBytes(a.rows, a.in));
  auto* const full =
      reinterpret_cast<Mbarrier*>(layout.partial + 2 * PartialFloats(SumRows(kRows)));
  layout.tiles = {shared, a.tile_bytes, a.stages, full, full + kMaxStages};
  layout.norms = reinterpret_cast<float*>(full + 2 * kMaxStages);
  return layout;
}

// A thread's output of a tile's rows: where it goes, and what is added to it: zeros where there is
// nothing, which makes -0 to 0 as cluster_gemm.cu does. Those are read long before they are used,
// so no arithmetic here.
struct Output {
  int n;       // row of the batch
  int row;     // `last` or behind it where the thread has no output
  int64_t at;  // in y
  float bias, previous;

  __device__ __forceinline__ Output(const SmallBatchGemmArguments& a, int first, int last)
      : n(static_cast<int>(threadIdx.x) / kTileRows) {
    const int m = static_cast<int>(threadIdx.x) % kTileRows;
    row = (n < a.rows && m < a.group_rows ? first : last) + m;
    at = n * a.y_stride + row;
  }

  // That of the next rows.
  __device__ __forceinline__ void Advance(const SmallBatchGemmArguments& a) {
    row += a.group_rows;
    at += a.group_rows;
  }
  __device__ __forceinline__ void LoadBias(const SmallBatchGemmArguments& a, int last) {
    bias = a.bias != nullptr && row < last ? a.bias[row] : 0;
  }
  __device__ __forceinline__ void LoadPrevious(const SmallBatchGemmArguments& a, int last) {
    previous = a.accumulate && row < last ? a.y_f32[at] : 0;
  }
};

// What the sums of a thread's output are multiplied by; where the product is gated, of the thread's
// half of W.
template <bool kFp8>
struct RowScale {
  int row, half;
  float scale;

  __device__ __forceinline__ RowScale(const SmallBatchGemmArguments& a, int first) {
    const int m = static_cast<int>(threadIdx.x) % kTileRows;
    row = first + (a.gated ? m % kHalfRows : m);
    half = a.gated && m >= kHalfRows ? a.out : 0;
  }
  __device__ __forceinline__ void Advance(const SmallBatchGemmArguments& a) { row += a.group_rows; }
  __device__ __forceinline__ void Load(const SmallBatchGemmArguments& a, int last) {
    if (kFp8) scale = row < last ? a.scales[row + half] : 0;
  }
  __device__ __forceinline__ float Of(float sum) const {
    return kFp8 ? __fmul_rn(sum, scale) : sum;
  }
};

// Every operation is one of cluster_gemm_epilogue.cuh's, in its order.
template <bool kNorm, int kRows, bool kFp8>
__device__ __forceinline__ void StoreValue(const SmallBatchGemmArguments& a, const float* norms,
                                           const float* partial, const Output& o,
                                           const RowScale<kFp8>& scale, int last) {
  constexpr int kValues = PartialFloats(SumRows(kRows)) / kConsumerWarps;
  // Where the product is gated, the lower rows' threads take part.
  if (a.gated ? Warp() * kWarp >= a.rows * kTileRows : o.row >= last) return;
  float sum[kConsumerWarps];
#pragma unroll
  for (int w = 0; w < kConsumerWarps; ++w) sum[w] = partial[w * kValues + threadIdx.x];
#pragma unroll
  for (int step = 1; step < kConsumerWarps; step *= 2) {
#pragma unroll
    for (int w = 0; w < kConsumerWarps; w += 2 * step) sum[w] = __fadd_rn(sum[w], sum[w + step]);
  }
  float total = scale.Of(sum[0]);
  if (kNorm) {
    const int floats = NormFloats(a.in);
    total = __fmul_rn(total, norms[min(o.n, a.rows - 1) * floats + floats - 1]);
  }
  float value = __fadd_rn(o.previous, __fadd_rn(total, o.bias));
  if (a.gated) {
    value = __bfloat162float(__float2bfloat16_rn(value));
    value = Gated(FromLaneXor(value, kHalfRows), value, a.act);
    if (o.row >= last) return;
  }
  if (a.y_f32 != nullptr) {
    a.y_f32[o.at] = value;
  } else {
    a.y_bf16[o.at] = __float2bfloat16_rn(value);
  }
}

// A multiplying warp's walk over a block's tiles, 16 rows of W at a time from left to right, and
// the block's outputs. The partial sums of these lie in one of two buffers in turn, so that one
// barrier for them suffices: a buffer is written again only after the next rows' barrier.
template <bool kNorm, int kRows, bool kFp8>
class Multiplier {
 public:
  __device__ __forceinline__ Multiplier(const SmallBatchGemmArguments& a,
                                        const SharedLayout& layout, int first, int last)
      : a_(a),
        layout_(layout),
        from_(InputAddress(a, layout, OpaqueThreadIdx())),
        row_(first),
        last_(last),
        output_(a, first, last),
        scale_(a, first) {
    const int row = first + static_cast<int>(threadIdx.x);
    if (a.bias != nullptr && row < last) Prefetch(a.bias + row);
    if (kFp8 && row < last) {
      Prefetch(a.scales + row);
      if (a.gated) Prefetch(a.scales + a.out + row);
    }
    output_.LoadBias(a, last);
    scale_.Load(a, last);
  }

  // When the kernel before has ended.
  __device__ __forceinline__ void LoadPrevious() { output_.LoadPrevious(a_, last_); }
  // When the input rows are there.
  __device__ __forceinline__ void Begin() {
#pragma unroll
    for (int pair = 0; pair < kChunkSteps / 2; ++pair) LoadInput(pair, 0);
  }

  // Adds the products of the warp's chunk of the next tile, stores the outputs of its rows if it is
  // their last, and goes on; false behind the last tile. kWhole: all tiles have all their columns.
  template <bool kWhole>
  __device__ __forceinline__ bool Multiply(const Fragments<kFp8>& w) {
    const int next = col_ + kTileCols < a_.in ? col_ + kTileCols : 0;
    MultiplyChunk<kWhole>(w, next);
    col_ = next;
    if (next > 0) return true;
    Store();
    return row_ < last_;
  }

 private:
  __device__ __forceinline__ static uint32_t InputAddress(const SmallBatchGemmArguments& a,
                                                          const SharedLayout& layout, int thread) {
    const int lane = thread % kWarp, warp = thread / kWarp;
    return SharedAddress(layout.input) + min(lane % 8, a.rows - 1) * InputStride(a.in) +
           warp * kChunkCols * 2 + lane / 8 * 16;
  }

  // Two products' input.
  __device__ __forceinline__ void LoadInput(int pair, int col) {
    LoadMatrices(x_[pair], from_ + (col + pair * 2 * kStep) * 2);
  }

  // Input is replaced by that of the tile at column `next` as soon as it is used.
  template <bool kWhole>
  __device__ __forceinline__ void MultiplyChunk(const Fragments<kFp8>& w, int next) {
    static_assert(kChunkSteps % 2 == 0);
    const int columns = a_.in - col_ - Warp() * kChunkCols;
#pragma unroll
    for (int i = 0; i < kChunkSteps; ++i) {
      const int at = i % 2 * 2;
      uint32_t operand[4];
      OperandOf(w, i, operand);
      if (!kWhole && columns < (i + 1) * kStep) operand[2] = operand[3] = 0;  // half of it is W's
      if (kWhole || columns > i * kStep) MultiplyAdd(c_, operand, x_[i / 2][at], x_[i / 2][at + 1]);
      if (i % 2 == 1) LoadInput(i / 2, next);
    }
  }

  // The outputs of 16 rows of W; the next ones' sums begin.
  __device__ __forceinline__ void Store() {
    const int lane = Lane();
    constexpr int kSumRows = SumRows(kRows);
    float* partial = layout_.partial + buffer_ * PartialFloats(kSumRows);
    if (lane % 4 < kSumRows / 2) {
      float* mine = partial + Warp() * kTileRows * kSumRows + lane % 4 * 2 * kTileRows + lane / 4;
      mine[0] = c_[0];
      mine[kTileRows] = c_[1];
      mine[kTileRows / 2] = c_[2];
      mine[kTileRows + kTileRows / 2] = c_[3];
    }
    SyncThreads<kConsumers>();
    StoreValue<kNorm, kRows>(a_, layout_.norms, partial, output_, scale_, last_);
    row_ += a_.group_rows;
    output_.Advance(a_);
    output_.LoadBias(a_, last_);
    output_.LoadPrevious(a_, last_);
    scale_.Advance(a_);
    scale_.Load(a_, last_);
    buffer_ ^= 1;
    c_[0] = c_[1] = c_[2] = c_[3] = 0;
  }

  const SmallBatchGemmArguments& a_;
  const SharedLayout& layout_;
  const uint32_t from_;  // the lane's row and column of the input
  int row_, col_ = 0;
  const int last_;
  int buffer_ = 0;
  Output output_;
  RowScale<kFp8> scale_;
  uint32_t x_[kChunkSteps / 2][4];
  float c_[4] = {};
};

// A warp's chunks of the next tiles, in registers: of a block's first ones before the input is
// there, so that their stages are filled again meanwhile; later the tile kTiles further on is
// loaded while one is multiplied.
template <int kTiles, bool kFp8>
struct HeldTiles {
  Fragments<kFp8> w[kTiles];

  __device__ __forceinline__ void Take(TileReader<kFp8>& reader) {
#pragma unroll
    for (int n = 0; n < kTiles; ++n) reader.Take(w[n]);
  }

  // Each branch on the way costs as much as a product.
  template <bool kWhole, typename Multiplying>
  __device__ __forceinline__ void MultiplyAll(Multiplying& multiplier, TileReader<kFp8>& reader) {
#pragma unroll 1
    while (true) {
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        if (!multiplier.template Multiply<kWhole>(w[n])) return;
        reader.Take(w[n]);
      }
    }
  }
};

// The columns between the end of an input row and that of a product, zeros in W too.
__device__ __forceinline__ void ClearInputEnds(const SmallBatchGemmArguments& a,
                                               const SharedLayout& layout) {
  const int row = static_cast<int>(threadIdx.x);
  if (a.in % kStep == 0 || row >= a.rows) return;
  *reinterpret_cast<uint4*>(layout.input + row * InputStride(a.in) + a.in * 2) = {};
}

// A block of a kernel for at most kRows rows.
template <bool kNorm, int kRows, bool kFp8>
__device__ __forceinline__ void RunBlock(const SmallBatchGemmArguments& a, unsigned char* shared,
                                         int block) {
  if (!kNorm) TriggerDependents();
  const SharedLayout layout = LayoutOf<kRows>(shared, a);
  const int first = block * a.block_rows, last = min(first + a.block_rows, a.out);
  if (threadIdx.x == kConsumers) {
    PrefetchBoxes(a);
    layout.tiles.Init(TileArrivals(a), kConsumerWarps);
    PublishBarriers();
    FenceAsyncProxy();
  }
  __syncthreads();
  if (threadIdx.x >= kConsumers) {
    if (CopiesTiles(a)) CopyWeights<kFp8>(a, layout.tiles, first, last);
    return;
  }
  // As many as registers allow.
  constexpr int kHeld =
      (kRows == 1 ? (kNorm || kFp8 ? 2 : 3) : (kNorm || kRows > 4 ? 1 : 2)) * (kFp8 ? 2 : 1);
  HeldTiles<kHeld, kFp8> held;
  TileReader<kFp8> reader(a, layout.tiles, last - first);
  Multiplier<kNorm, kRows, kFp8> multiplier(a, layout, first, last);
  ClearInputEnds(a, layout);
  using Input = std::conditional_t<kNorm, NormedInput<kRows>, CopiedInput<kRows>>;
  Input input(a.input, InputStride(a.in) / 2);
  held.Take(reader);
  WaitOnDependencies();
  if (kNorm) TriggerDependents();  // not before
  multiplier.LoadPrevious();
  input.Bring(reinterpret_cast<__nv_bfloat16*>(layout.input), layout.norms);
  if (!kNorm) SyncThreads<kConsumers>();
  multiplier.Begin();
  if (a.in % kTileCols == 0) {
    held.template MultiplyAll<true>(multiplier, reader);
  } else {
    held.template MultiplyAll<false>(multiplier, reader);
  }
}

// The first rows of W in 8 bits, the rest in bf16 by blocks of their own.
struct Parts {
  SmallBatchGemmArguments fp8, rest;
};

template <bool kNorm, int kRows, bool kFp8>
__global__ void __launch_bounds__(kThreads, 2) SmallBatchGemmKernel(
    const __grid_constant__ std::conditional_t<kFp8, Parts, SmallBatchGemmArguments> a) {
  extern __shared__ __align__(1024) unsigned char shared[];
  const int block = static_cast<int>(blockIdx.x);
  if constexpr (!kFp8) {
    RunBlock<kNorm, kRows, false>(a, shared, block);
  } else if (block < a.fp8.blocks) {
    RunBlock<kNorm, kRows, true>(a.fp8, shared, block);
  } else {
    RunBlock<kNorm, kRows, false>(a.rest, shared, block - a.fp8.blocks);
  }
}

// Divides the outputs among at most so many blocks of whole tiles, for a tile's copy has all its
// rows. Half as many for one row of a product that adds to the residual stream, in bf16, where a
// block then still holds its whole share before the wait: a second block on an SM would keep the
// next product's away. (8 bits and more rows gain nothing.) Gives the ring as many tiles as a block
// has, the budget holds and the barriers serve; the block's shared memory.
template <bool kFp8>
int ChooseTiling(int most_blocks, const DeviceLimits& limits, SmallBatchGemmArguments* a) {
  const int64_t half_share = CeilDiv(2 * a->out, most_blocks) * Tiles<kFp8>::RowBytes(a->in);
  const bool halved =
      !kFp8 && limits.overlaps && a->accumulate && a->rows == 1 && half_share <= kNarrowBudget;
  if (halved) most_blocks = std::max(1, most_blocks / 2);
  const int rows = CeilDiv(a->out, most_blocks);
  const int groups = CeilDiv(rows, a->gated ? kHalfRows : kTileRows);
  a->group_rows = CeilDiv(rows, groups);
  a->block_rows = groups * a->group_rows;
  a->blocks = CeilDiv(a->out, a->block_rows);
  a->tile_rows = a->group_rows * (a->gated ? 2 : 1);
  a->tile_bytes = Tiles<kFp8>::Bytes(a->tile_rows);
  const int64_t tiles = int64_t{groups} * CeilDiv(a->in, kTileCols);
  const int budget = std::min(tiles * a->tile_bytes > kLongShare ? kLongBudget
                              : a->accumulate                    ? kNarrowBudget
                                                                 : kWideBudget,
                              limits.block_shared_bytes);
  const int fitting =
      std::max((budget - FixedBytes(a->rows, a->in)) / a->tile_bytes, Tiles<kFp8>::kMinStages);
  a->stages = static_cast<int>(std::min<int64_t>({tiles, fitting, kMaxStages}));
  return a->stages * a->tile_bytes + FixedBytes(a->rows, a->in);
}

// Divides the blocks so that all read as many bytes; the shared memory of one.
int ShareRows(const DeviceWeight& weight, const DeviceLimits& limits, Parts* a) {
  const int fp8 = static_cast<int>(weight.fp8().rows), blocks = limits.multiprocessors;
  const int rest = static_cast<int>(weight.out()) - fp8;
  FOX_CHECK(fp8 == 0 || rest == 0 || (!a->fp8.gated && blocks > 1));
  const int rest_blocks = rest == 0 ? 0 : std::max(1, 2 * rest * blocks / (fp8 + 2 * rest));
  a->fp8.out -= rest;
  a->rest.SkipOutputs(fp8);
  return std::max(fp8 == 0 ? 0 : ChooseTiling<true>(blocks - rest_blocks, limits, &a->fp8),
                  rest == 0 ? 0 : ChooseTiling<false>(rest_blocks, limits, &a->rest));
}

template <bool kFp8>
cudaError_t MapTiles(bool boxes, SmallBatchGemmArguments* a) {
  const int64_t row_bytes = Tiles<kFp8>::RowBytes(a->in);
  a->by_rows = !boxes || row_bytes % kMapLineBytes != 0;
  if (a->by_rows || a->blocks == 0) return cudaSuccess;
  const void* weight = kFp8 ? static_cast<const void*>(a->codes) : a->weight;
  return EncodeLinesMap(weight, a->out, a->gated ? 2 : 1, row_bytes, a->group_rows,
                        Tiles<kFp8>::kLines, &a->tiles);
}

template <bool kNorm, bool kFp8>
cudaError_t LaunchFor(Parts a, const DeviceWeight& weight, const DeviceLimits& limits,
                      cudaStream_t stream) {
  const auto kernel = a.rest.rows == 1   ? SmallBatchGemmKernel<kNorm, 1, kFp8>
                      : a.rest.rows <= 4 ? SmallBatchGemmKernel<kNorm, 4, kFp8>
                                         : SmallBatchGemmKernel<kNorm, 8, kFp8>;
  const SmemConfig smem(static_cast<size_t>(ShareRows(weight, limits, &a)), true);
  const bool boxes = HasSm90Code(KernelAddress(kernel));
  cudaError_t ready = AllowDynamicSmem(KernelAddress(kernel), limits.block_shared_bytes);
  if (ready == cudaSuccess) ready = MapTiles<true>(boxes, &a.fp8);
  if (ready == cudaSuccess) ready = MapTiles<false>(boxes, &a.rest);
  if (ready != cudaSuccess) return ready;
  const dim3 blocks(static_cast<unsigned>(a.fp8.blocks + a.rest.blocks));
  if constexpr (kFp8) {
    return Launch(kernel, blocks, dim3(kThreads), smem, stream, a);
  } else {
    return Launch(kernel, blocks, dim3(kThreads), smem, stream, a.rest);
  }
}

}  // namespace

// Tiles of 8 bits need no more.
int64_t SmallBatchRows(int64_t columns, const DeviceLimits& limits) {
  int64_t rows = columns <= limits.block_shared_bytes ? kMaxSmallBatchRows : 0;
  while (rows > 0 && FixedBytes(static_cast<int>(rows), static_cast<int>(columns)) +
                             Tiles<false>::kMinStages * Tiles<false>::Bytes(kTileRows) >
                         limits.block_shared_bytes) {
    --rows;
  }
  return rows;
}

cudaError_t SmallBatchGemm(const LinearParams& params, const DeviceLimits& limits,
                           cudaStream_t stream) {
  const MatrixView& in = params.in;
  const bool norm = params.norm.has_value();
  FOX_CHECK(in.rows >= 1 && in.rows <= SmallBatchRows(params.weight.in(), limits));
  SmallBatchGemmArguments a{};
  static_cast<GemmArguments&>(a) = MakeGemmArguments(params);
  a.input = {in.data, in.row_stride, a.rows, a.in, nullptr, 0};
  if (norm) {
    a.input.norm_weight = static_cast<const float*>(params.norm->weight);
    a.input.eps = static_cast<float>(params.norm->eps);
    FOX_CHECK(reinterpret_cast<uintptr_t>(params.norm->weight) % 16 == 0);
  }
  const DeviceWeight& weight = OnDevice(params.weight);
  const bool fp8 = weight.fp8().rows > 0;
  const auto launch = norm ? (fp8 ? LaunchFor<true, true> : LaunchFor<true, false>)
                           : (fp8 ? LaunchFor<false, true> : LaunchFor<false, false>);
  return launch({a, a}, weight, limits, stream);
}

}  // namespace fox::cuda
