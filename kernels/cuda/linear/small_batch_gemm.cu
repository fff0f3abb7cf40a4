// One block an SM owns a contiguous range of W's rows and streams it through a ring of tiles in
// shared memory from before the previous kernel has ended: on Hopper one thread copies, a tile at a
// time (small_batch_tiles.cuh). Eight warps first take their first tiles into registers and bring
// the input rows, then each multiplies its 64 of 512 columns. Tensor cores multiply, because four
// rows at a time would be too much arithmetic for the FP32 units: W is the operand of 16 rows, the
// input rows are the operand of 8 (missing rows are repeats, unused). With a gate an operand has 8
// rows of each half of W. Rows of 8 bits are widened in registers, exactly, and their sums are
// multiplied by the rows' powers of two, exactly, too.
//
// In bf16 reading W takes the time. In 8 bits instructions take it: so up to 64 rows of W at a time
// are multiplied in independent chains and stored once, and all code runs once before the wait,
// because a step's weights evict it from the caches.
//
// Bits (cluster_gemm.md): the same as cluster_gemm.cu's. A warp adds the chunks of 64 columns whose
// index is its own modulo 8, from left to right in one chain; the warps' sums are added as a tree.
#include <cuda_bf16.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "kernels/core/check.h"
#include "kernels/cuda/linear/device_weight.h"
#include "kernels/cuda/linear/gemm_kernels.h"
#include "kernels/cuda/linear/small_batch_input.cuh"
#include "kernels/cuda/linear/small_batch_outputs.cuh"
#include "kernels/cuda/linear/small_batch_tiles.cuh"
#include "kernels/cuda/primitives/warp.cuh"
#include "kernels/cuda/ptx/dependent_launch.cuh"
#include "kernels/cuda/ptx/mbarrier.cuh"
#include "kernels/cuda/ptx/mma_sm80.cuh"
#include "kernels/cuda/ptx/named_barrier.cuh"
#include "kernels/cuda/runtime/launch.h"
#include "kernels/cuda/runtime/tensor_map.h"

namespace fox::cuda {
namespace {

using namespace small_batch;

// Blocks of this product and the next share an SM's 228 KiB (each costs 1 KiB more), with
// attention's blocks between them. Weights that are in shared memory before the wait need not be
// fetched after it, so a wide product, which follows a narrow product (it adds to the residual
// stream), gets most of the memory.
constexpr int kWideBudget = 150 * 1024;
constexpr int kNarrowBudget = 75 * 1024;
// A block that reads more than kLongShare leaves no room beside it for another such block, which
// would have filled its ring long before the wait. Without room it fills the ring during the wait,
// when nothing else is read. In 8 bits gate/up of a 7B shape still finds room beside the output
// projection, whose shares are short then.
constexpr int kLongShare = 240 * 1024;
template <bool kFp8>
constexpr int kLongBudget = (kFp8 ? 140 : 200) * 1024;

// The lane's row and column of the input.
__device__ __forceinline__ uint32_t InputAddress(const SmallBatchGemmArguments& a,
                                                 const SharedLayout& layout, int thread) {
  const int lane = thread % kWarp, warp = thread / kWarp;
  return SharedAddress(layout.input) + min(lane % 8, a.rows - 1) * InputStride(a.in) +
         warp * kChunkCols * 2 + lane / 8 * 16;
}
// Two products' input of the warp's chunk of the step at `col`; `from` is an InputAddress.
__device__ __forceinline__ void LoadInput(uint32_t from, int pair, int col, uint32_t (&x)[4]) {
  LoadMatrices(x, from + (col + pair * 2 * kStep) * 2);
}
// c += the product of 16 columns, of which the first `columns` exist; kWhole: all do.
template <bool kWhole, bool kFp8>
__device__ __forceinline__ void MultiplyStep(const Fragments<kFp8>& w, int step, int columns,
                                             const uint32_t* x, float (&c)[4]) {
  uint32_t operand[4];
  OperandOf(w, step, operand);
  if (!kWhole && columns < (step + 1) * kStep) operand[2] = operand[3] = 0;  // half of it is W's
  if (kWhole || columns > step * kStep) MultiplyAdd(c, operand, x[0], x[1]);
}

// A multiplying warp's walk over a block's tiles in bf16, a group of 16 rows of W at a time from
// left to right.
template <bool kNorm, int kRows>
class Multiplier {
 public:
  __device__ __forceinline__ Multiplier(const SmallBatchGemmArguments& a,
                                        const SharedLayout& layout, int first, int last)
      : a_(a),
        from_(InputAddress(a, layout, OpaqueThreadIdx())),
        outputs_(a, layout, first, last),
        reader_(a, layout.tiles),
        left_(outputs_.StepsLeft()) {}

  // Takes the first tiles when they have arrived; before the input has, if registers allow
  // (kEarly).
  static constexpr bool kEarly = true;
  __device__ __forceinline__ void Begin() {
#pragma unroll
    for (int n = 0; n < kHeld; ++n) Take(w_[n]);
  }
  // REQUIRES: the previous kernel has ended.
  __device__ __forceinline__ void LoadPrevious() { outputs_.LoadPrevious(); }

  // ready() returns when the input rows are there. Each branch on the way costs as much as a
  // product.
  template <bool kWhole, typename Ready>
  __device__ __forceinline__ void Run(const Ready& ready) {
    ready();
#pragma unroll
    for (int pair = 0; pair < kChunkSteps / 2; ++pair) LoadInput(from_, pair, 0, x_[pair]);
#pragma unroll 1
    while (true) {
#pragma unroll
      for (int n = 0; n < kHeld; ++n) {
        if (!MultiplyTile<kWhole>(w_[n])) return;
        Take(w_[n]);
      }
    }
  }

 private:
  // Tiles in registers: a block's first kHeld tiles before the input has arrived, so that their
  // stages are filled again meanwhile; later, while a tile is multiplied, the tile kHeld further on
  // is loaded. As many as registers allow.
  static constexpr int kHeld = kRows == 1 ? (kNorm ? 2 : 3) : (kNorm || kRows > 4 ? 1 : 2);

  // Takes the next tile's chunk; past the last tile, that tile's chunk again.
  __device__ __forceinline__ void Take(Fragments<false>& w) {
    reader_.Wait();
    reader_.Load(0, w);
    reader_.Release();
    reader_.Advance(--left_ > 0);
  }

  // Adds the products of the next tile's chunk, stores the outputs of its rows if it is their last,
  // and goes on; false behind the last tile. Input is replaced as soon as it is used.
  template <bool kWhole>
  __device__ __forceinline__ bool MultiplyTile(const Fragments<false>& w) {
    static_assert(kChunkSteps % 2 == 0);
    const int columns = a_.in - col_ - Warp() * kChunkCols;
    const int next = col_ + kStepCols < a_.in ? col_ + kStepCols : 0;
#pragma unroll
    for (int i = 0; i < kChunkSteps; ++i) {
      MultiplyStep<kWhole, false>(w, i, columns, x_[i / 2] + i % 2 * 2, c_);
      if (i % 2 == 1) LoadInput(from_, i / 2, next, x_[i / 2]);
    }
    col_ = next;
    if (next > 0) return true;
    outputs_.Put(0, c_);
    const bool more = outputs_.Store();
    c_[0] = c_[1] = c_[2] = c_[3] = 0;
    return more;
  }

  const SmallBatchGemmArguments& a_;
  const uint32_t from_;
  Outputs<kNorm, kRows, false> outputs_;
  TileReader<false, 1> reader_;
  int left_;  // tiles to be taken
  int col_ = 0;
  Fragments<false> w_[kHeld];
  uint32_t x_[kChunkSteps / 2][4];
  float c_[4] = {};
};

// A multiplying warp's walk over a block's tiles in 8 bits, a set of kGroups groups at a time.
template <bool kNorm, int kRows, int kGroups>
class SetMultiplier {
 public:
  __device__ __forceinline__ SetMultiplier(const SmallBatchGemmArguments& a,
                                           const SharedLayout& layout, int first, int last)
      : a_(a),
        from_(InputAddress(a, layout, OpaqueThreadIdx())),
        outputs_(a, layout, first, last),
        reader_(a, layout.tiles) {}

  // Registers suffice for W's first groups beside the input, and for a rehearsal before it.
  static constexpr bool kEarly = !kNorm || kRows == 1;
  __device__ __forceinline__ void Begin() {
    reader_.Wait();
#pragma unroll
    for (int g = 0; g < kHeld; ++g) reader_.Load(g, w_[g]);
    if (kHeld == kGroups) reader_.Release();
  }
  __device__ __forceinline__ void LoadPrevious() { outputs_.LoadPrevious(); }

  // ready() returns when the input rows are there. Before that the same code runs for a step whose
  // results are discarded, so that it is in the SM's cache. That step reads whatever bits shared
  // memory has, and changes nothing else.
  template <bool kWhole, typename Ready>
  __device__ __forceinline__ void Run(const Ready& ready) {
    if (!kEarly) {
      ready();
      left_ = outputs_.StepsLeft();
    }
#pragma unroll 1
    while (true) {
      bool more;
#pragma unroll 1
      do {
#pragma unroll
        for (int i = 0; i < kGroups * 4; ++i) c_[i / 4][i % 4] = 0;
#pragma unroll 1
        for (int col = 0; col < (Begun() ? a_.in : 1); col += kStepCols) Multiply<kWhole>(col);
#pragma unroll
        for (int g = 0; g < kGroups; ++g) outputs_.Put(g, c_[g]);
        more = outputs_.Store(Begun());
      } while (more);
      if (Begun()) return;
      ready();
      begun_ = true;
      left_ = outputs_.StepsLeft();
    }
  }

 private:
  // Groups in registers.
  static constexpr int kHeld = kGroups < 2 ? kGroups : 2;

  __device__ __forceinline__ bool Begun() const { return !kEarly || begun_; }

  // Adds the products of the warp's chunk. When W's groups have been used, the next ones replace
  // them in registers; after the last step, arbitrary ones. Two groups at a time, because a product
  // waits for the previous product of its chain.
  template <bool kWhole>
  __device__ __forceinline__ void Multiply(int col) {
    const int columns = a_.in - col - Warp() * kChunkCols;
    const bool more = --left_ > 0;
    uint32_t x[kChunkSteps / 2][4];
#pragma unroll
    for (int pair = 0; pair < kChunkSteps / 2; ++pair) LoadInput(from_, pair, col, x[pair]);
#pragma unroll
    for (int first = 0; first < kGroups; first += 2) {
      // The pair's replacement: further groups of this tile, or the next tile's first groups.
      const bool of_next = first + kHeld >= kGroups;
      const int load = of_next ? 0 : first + kHeld;
      if (of_next && more) {
        reader_.Advance(true);
        reader_.Wait();
      }
#pragma unroll
      for (int i = 0; i < kChunkSteps; ++i) {
#pragma unroll
        for (int g = first; g < first + 2 && g < kGroups; ++g) {
          MultiplyStep<kWhole, true>(w_[g % kHeld], i, columns, x[i / 2] + i % 2 * 2, c_[g]);
        }
      }
#pragma unroll
      for (int g = load; g < load + 2 && g < kGroups; ++g) reader_.Load(g, w_[g % kHeld]);
      if (load + 2 >= kGroups && (of_next ? more : Begun())) reader_.Release();
    }
  }

  const SmallBatchGemmArguments& a_;
  const uint32_t from_;
  Outputs<kNorm, kRows, true> outputs_;
  TileReader<true, kGroups> reader_;
  int left_ = 1;  // steps
  bool begun_ = false;
  Fragments<true> w_[kHeld];
  float c_[kGroups][4];
};

// Zeroes the columns between the end of an input row and the end of its last product's 16 columns,
// which are zeros in W, too.
__device__ __forceinline__ void ClearInputEnds(const SmallBatchGemmArguments& a,
                                               const SharedLayout& layout) {
  const int row = static_cast<int>(threadIdx.x);
  if (a.in % kStep == 0 || row >= a.rows) return;
  *reinterpret_cast<uint4*>(layout.input + row * InputStride(a.in) + a.in * 2) = {};
}

// The multiplying warps' part of a block.
template <bool kNorm, int kRows, bool kWhole, typename Multiplying>
__device__ __forceinline__ void Multiply(const SmallBatchGemmArguments& a,
                                         const SharedLayout& layout, int first, int last) {
  Multiplying multiplier(a, layout, first, last);
  ClearInputEnds(a, layout);
  const auto ready = [&] {
    using Input = std::conditional_t<kNorm, NormedInput<kRows>, CopiedInput<kRows>>;
    Input input(a.input, InputStride(a.in) / 2);
    if (Multiplying::kEarly) multiplier.Begin();
    WaitOnDependencies();
    if (kNorm) TriggerDependents();  // not before
    multiplier.LoadPrevious();
    input.Bring(reinterpret_cast<__nv_bfloat16*>(layout.input), layout.norms);
    if (!kNorm) SyncThreads<kConsumers>();
    if (!Multiplying::kEarly) multiplier.Begin();
  };
  multiplier.template Run<kWhole>(ready);
}

// The work of a block, in a kernel for at most kRows rows. kWhole: all steps have all columns.
template <bool kNorm, int kRows, bool kWhole, bool kFp8>
__device__ __forceinline__ void RunBlock(const SmallBatchGemmArguments& a, unsigned char* shared,
                                         int block) {
  if (!kNorm) TriggerDependents();
  const SharedLayout layout = LayoutOf<kRows, kFp8>(shared, a);
  const int first = block * a.block_rows, last = min(first + a.block_rows, a.out);
  if (threadIdx.x == kConsumers) {
    PrefetchBoxes(a);
    layout.tiles.Init(TileArrivals(a), a.chunks);
    PublishBarriers();
    FenceAsyncProxy();
  }
  __syncthreads();
  if (threadIdx.x >= kConsumers) {
    if (CopiesTiles(a)) CopyWeights<kFp8>(a, layout.tiles, first, last);
    return;
  }
  const auto multiply = [&]<typename Multiplying>() {
    Multiply<kNorm, kRows, kWhole, Multiplying>(a, layout, first, last);
  };
  if constexpr (!kFp8) {
    multiply.template operator()<Multiplier<kNorm, kRows>>();
  } else if (a.groups == 1) {
    multiply.template operator()<SetMultiplier<kNorm, kRows, 1>>();
  } else if (a.groups == 2) {
    multiply.template operator()<SetMultiplier<kNorm, kRows, 2>>();
  } else if constexpr (SetGroups<true>(kRows) > 2) {
    if (a.groups == 3) {
      multiply.template operator()<SetMultiplier<kNorm, kRows, 3>>();
    } else {
      multiply.template operator()<SetMultiplier<kNorm, kRows, 4>>();
    }
  }
}

// Arguments of the blocks for W's first rows, in 8 bits, and of the blocks for the rest, in bf16.
struct Parts {
  SmallBatchGemmArguments fp8, rest;
};

template <bool kNorm, int kRows, bool kWhole, bool kFp8>
__global__ void __launch_bounds__(kThreads, 2) SmallBatchGemmKernel(
    const __grid_constant__ std::conditional_t<kFp8, Parts, SmallBatchGemmArguments> a) {
  extern __shared__ __align__(1024) unsigned char shared[];
  const int block = static_cast<int>(blockIdx.x);
  if constexpr (!kFp8) {
    RunBlock<kNorm, kRows, kWhole, false>(a, shared, block);
  } else if (block < a.fp8.blocks) {
    RunBlock<kNorm, kRows, kWhole, true>(a.fp8, shared, block);
  } else {
    RunBlock<kNorm, kRows, kWhole, false>(a.rest, shared, block - a.fp8.blocks);
  }
}

// Divides the outputs among at most `most_blocks` blocks of whole sets, because a tile's copy has
// all its rows. A block that reads much has small sets, because longer pieces of a row are read
// faster. One row of a product in bf16 that adds to the residual stream gets half as many blocks,
// if a block then still holds its whole share before the wait: a second block on an SM would leave
// no room for the next product's. (8 bits and more rows gain nothing.) The ring gets at most as
// many tiles as a block has, the budget holds and the barriers serve. Returns the block's shared
// memory in bytes.
template <bool kFp8>
int ChooseTiling(int most_blocks, const DeviceLimits& limits, SmallBatchGemmArguments* a) {
  const int64_t half_share = CeilDiv(2 * a->out, most_blocks) * Tiles<kFp8>::RowBytes(a->in);
  const bool halved =
      !kFp8 && limits.overlaps && a->accumulate && a->rows == 1 && half_share <= kNarrowBudget;
  if (halved) most_blocks = std::max(1, most_blocks / 2);
  const int rows = CeilDiv(a->out, most_blocks);
  const int halves = a->gated ? 2 : 1;
  const bool is_long = rows * halves * Tiles<kFp8>::RowBytes(a->in) > kLongShare;
  const int most_groups = std::min(SetGroups<kFp8>(a->rows), is_long ? 2 : kMaxGroups);
  const int sets = CeilDiv(rows, most_groups * kGroupRows / halves);
  a->set_rows = CeilDiv(rows, sets);
  a->groups = CeilDiv(a->set_rows, kGroupRows / halves);
  a->chunks = ChunksOf(a->groups);
  a->block_rows = sets * a->set_rows;
  a->blocks = CeilDiv(a->out, a->block_rows);
  a->tile_rows = a->set_rows * halves;
  a->tile_bytes = Tiles<kFp8>::Bytes(a->tile_rows, a->chunks);
  const int64_t tiles = int64_t{sets} * Steps(*a) * kConsumerWarps / a->chunks;
  const int budget = is_long ? kLongBudget<kFp8> : a->accumulate ? kNarrowBudget : kWideBudget;
  const int fixed = FixedBytes<kFp8>(a->rows, a->in);
  a->under_way = Tiles<kFp8>::UnderWay(a->tile_bytes);
  const int wanted =
      std::max({(budget - fixed) / a->tile_bytes, a->under_way, Tiles<kFp8>::kMinStages});
  const int fitting = std::min(wanted, (limits.block_shared_bytes - fixed) / a->tile_bytes);
  a->stages = static_cast<int>(std::min<int64_t>({tiles, fitting, kMaxStages}));
  return a->stages * a->tile_bytes + fixed;
}

// Divides the blocks among both parts of W so that all read about as many bytes; the rest gets
// those, too, that the whole sets of the 8 bits leave over, lest its blocks end last. Returns the
// shared memory of a block in bytes.
int ShareRows(const DeviceWeight& weight, const DeviceLimits& limits, Parts* a) {
  const int fp8 = static_cast<int>(weight.fp8().rows), blocks = limits.multiprocessors;
  const int rest = static_cast<int>(weight.out()) - fp8;
  FOX_CHECK(fp8 == 0 || rest == 0 || (!a->fp8.gated && blocks > 1));
  const int rest_blocks = rest == 0 ? 0 : std::max(1, 2 * rest * blocks / (fp8 + 2 * rest));
  a->fp8.out -= rest;
  a->rest.SkipOutputs(fp8);
  const int bytes = fp8 == 0 ? 0 : ChooseTiling<true>(blocks - rest_blocks, limits, &a->fp8);
  return std::max(bytes,
                  rest == 0 ? 0 : ChooseTiling<false>(blocks - a->fp8.blocks, limits, &a->rest));
}

template <bool kFp8>
cudaError_t MapTiles(bool boxes, SmallBatchGemmArguments* a) {
  const int64_t row_bytes = Tiles<kFp8>::RowBytes(a->in);
  a->by_rows = !boxes || row_bytes % kMapLineBytes != 0;
  if (a->by_rows || a->blocks == 0) return cudaSuccess;
  const void* weight = kFp8 ? static_cast<const void*>(a->codes) : a->weight;
  return EncodeLinesMap(weight, a->out, a->gated ? 2 : 1, row_bytes, a->set_rows,
                        Tiles<kFp8>::Lines(a->chunks), &a->tiles);
}

template <bool kNorm, bool kWhole, bool kFp8>
auto KernelFor(int rows) {
  return rows == 1   ? SmallBatchGemmKernel<kNorm, 1, kWhole, kFp8>
         : rows <= 4 ? SmallBatchGemmKernel<kNorm, 4, kWhole, kFp8>
                     : SmallBatchGemmKernel<kNorm, 8, kWhole, kFp8>;
}

template <bool kNorm, bool kFp8>
cudaError_t LaunchFor(Parts a, const DeviceWeight& weight, const DeviceLimits& limits,
                      cudaStream_t stream) {
  const int rows = a.rest.rows;
  const auto kernel = a.rest.in % kStepCols == 0 ? KernelFor<kNorm, true, kFp8>(rows)
                                                 : KernelFor<kNorm, false, kFp8>(rows);
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

// Shared memory with the fewest tiles. SmallBatchRows, which knows no weight, asks for bf16: 8 bits
// need no more.
template <bool kFp8>
constexpr int LeastBytes(int rows, int in) {
  return FixedBytes<kFp8>(rows, in) + Tiles<kFp8>::kMinStages * kMaxTileBytes;
}
static_assert(LeastBytes<true>(4, 8) <= LeastBytes<false>(4, 8));
static_assert(LeastBytes<true>(8, 8) <= LeastBytes<false>(8, 8));

}  // namespace

int64_t SmallBatchRows(int64_t columns, const DeviceLimits& limits) {
  int64_t rows = columns <= limits.block_shared_bytes ? kMaxSmallBatchRows : 0;
  while (rows > 0 && LeastBytes<false>(static_cast<int>(rows), static_cast<int>(columns)) >
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
  FOX_CHECK(a.rows * a.y_stride <= INT32_MAX);  // Outputs::At
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
