// Tiles of 128 rows of W and of 64, 128 or 256 rows of x: a block on every SM goes on from tile to
// tile. W is wgmma's operand from registers, so its codes are widened on their way there, in two
// warpgroups of 64 rows of W each, which share the tile's rows of x: half a chunk is widened while
// the half before is multiplied. Two threads of a third copy by TMA, tiles ahead, each into its
// ring: lines of W, 128 codes or 64 bf16, and chunks of 64 columns of x. Row scales are powers of
// two, so that sums are multiplied by them exactly. Rows of W in bf16 are tiles of their own.
//
// Bits (prefill_gemm.md): columns are summed from left to right, 16 at a time, in one chain from
// zero, as in prefill_gemm.cu and in cuBLASLt's kernels; then what those and their followers do.
#include <cuda.h>
#include <cuda_bf16.h>

#include <algorithm>
#include <cstdint>

#include "kernels/core/check.h"
#include "kernels/cuda/linear/device_weight.h"
#include "kernels/cuda/linear/fp8_operand.cuh"
#include "kernels/cuda/linear/gemm_kernels.h"
#include "kernels/cuda/primitives/norm_and_gate.cuh"
#include "kernels/cuda/primitives/ring.cuh"
#include "kernels/cuda/primitives/warp.cuh"
#include "kernels/cuda/ptx/dependent_launch.cuh"
#include "kernels/cuda/ptx/mbarrier.cuh"
#include "kernels/cuda/ptx/shared_memory.cuh"
#include "kernels/cuda/ptx/tma.cuh"
#include "kernels/cuda/ptx/wgmma.cuh"
#include "kernels/cuda/runtime/launch.h"
#include "kernels/cuda/runtime/tensor_map.h"

namespace fox::cuda {
namespace {

constexpr int kGroupThreads = 128;
constexpr int kThreads = 3 * kGroupThreads;  // two groups multiply, one copies
constexpr int kReaderWarps = 2 * kGroupThreads / kWarp;
// A tile's rows of W are two halves: 128 neighbours or, with a gate, its rows and those of the same
// outputs' values. A warp has eight rows of each half, so that both meet in a thread (wgmma.cuh).
constexpr int kHalfRows = 64;
[[maybe_unused]] constexpr int kHalfRowsOfWarp = kHalfRows / kReaderWarps;
constexpr int kLineBytes = 128;  // of W and x, a line of the swizzle
constexpr int kLineWords = 64;   // of 16 bits: columns of bf16
constexpr int kPeriodBytes = 8 * kLineBytes;
constexpr int kHalfBytes = kHalfRows * kLineBytes;
constexpr int kWeightBytes = 2 * kHalfBytes;
constexpr int kRingBytes = 208 * 1024;  // of both rings

// kRows: of x.
template <int kRowsOfTile>
struct TilePlan {
  static constexpr int kRows = kRowsOfTile;
  static constexpr int kXBytes = kRows * kLineBytes;
  // Both rings hold about as many columns of codes.
  static constexpr int kWeightStages = kRingBytes / (2 * kXBytes + kWeightBytes) + 1;
  static constexpr int kXStages = (kRingBytes - kWeightStages * kWeightBytes) / kXBytes;
  static constexpr int kSmemBytes =
      kWeightStages * kWeightBytes + kXStages * kXBytes + kPeriodBytes;
  using Sums = float[kRows / 2];
};

// Rows of W that are all codes (scales is not null) or all bf16.
struct WeightPart : GemmArguments {
  CUtensorMap map;
  int tiles;        // 0: none, and no map
  int tile_rows;    // of W, from tile to tile
  int half_offset;  // rows of W from a tile's first half to the second
  int lines;        // of a row of W
};

struct PrefillFp8Arguments {
  WeightPart fp8, rest;
  CUtensorMap x_map;
  int row_tiles;
};

// A tile of rows of W that are all codes or not, from row `weight_row` on, and of rows of x.
struct Tile {
  const WeightPart& part;
  bool fp8;
  int weight_row, row;
};

// f(tile) for a block's tiles. They go down all rows of x before they go on in W, so that W is read
// from memory once, and x from the L2.
template <typename Plan, typename F>
__device__ __forceinline__ void ForEachTile(const PrefillFp8Arguments& a, const F& f) {
  const int tiles = (a.fp8.tiles + a.rest.tiles) * a.row_tiles;
#pragma unroll 1
  for (int i = static_cast<int>(blockIdx.x); i < tiles; i += static_cast<int>(gridDim.x)) {
    const int of_weight = i / a.row_tiles;
    const bool fp8 = of_weight < a.fp8.tiles;
    const WeightPart& part = fp8 ? a.fp8 : a.rest;
    const int of_part = fp8 ? of_weight : of_weight - a.fp8.tiles;
    f(Tile{part, fp8, of_part * part.tile_rows, i % a.row_tiles * Plan::kRows});
  }
}

// One thread.
template <typename Plan>
__device__ __forceinline__ void CopyWeights(const PrefillFp8Arguments& a, const Ring& ring) {
  RingPlace to;
  ForEachTile<Plan>(a, [&](const Tile& tile) {
    const WeightPart& part = tile.part;
    const int second_row = tile.weight_row + part.half_offset;
#pragma unroll 1
    for (int line = 0; line < part.lines; ++line) {
      Mbarrier* const full = &ring.full[to.stage];
      ring.empty[to.stage].Wait(to.parity ^ 1);
      full->ArriveAndExpect(kWeightBytes);
      TmaLoad2D(ring.At(to.stage), &part.map, line * kLineWords, tile.weight_row, full);
      TmaLoad2D(ring.At(to.stage) + kHalfBytes, &part.map, line * kLineWords, second_row, full);
      to.Advance(Plan::kWeightStages);
    }
  });
}

// One thread.
template <typename Plan>
__device__ __forceinline__ void CopyInputs(const PrefillFp8Arguments& a, const Ring& ring) {
  RingPlace to;
  ForEachTile<Plan>(a, [&](const Tile& tile) {
    const int chunks = tile.part.lines * (tile.fp8 ? 2 : 1);
#pragma unroll 1
    for (int chunk = 0; chunk < chunks; ++chunk) {
      Mbarrier* const full = &ring.full[to.stage];
      ring.empty[to.stage].Wait(to.parity ^ 1);
      full->ArriveAndExpect(Plan::kXBytes);
      TmaLoad2D(ring.At(to.stage), &a.x_map, chunk * kLineWords, tile.row, full);
      to.Advance(Plan::kXStages);
    }
  });
}

// Takes lines of W and chunks of x from the rings and multiplies them; for a group.
template <typename Plan>
struct Reader {
  using Sums = typename Plan::Sums;

  Ring weights, inputs;
  RingPlace at = {}, x_at = {};
  int before = 0;  // stage of x that the products under way read
  HeldOperand held = {};

  // Frees a stage that the warp has read.
  __device__ __forceinline__ static void Release(Mbarrier& empty) {
    if (Lane() == 0) empty.Arrive();
  }

  // Starts the products of the next line: c = products if kFirst, else c += products. Those of
  // earlier lines are done when it returns.
  template <bool kFp8, bool kFirst>
  __device__ __forceinline__ void Start(Sums& c) {
    const unsigned char* const lines = weights.At(at.stage);
    const int row = Lane() / 8 % 2 * kHalfRows + Warp() * kHalfRowsOfWarp + Lane() % 8;
    weights.full[at.stage].Wait(at.parity);
#pragma unroll
    for (int i = 0; i < (kFp8 ? 2 : 1); ++i) {
      const uint64_t x = LinesDescriptor(inputs.At(x_at.stage));
      const bool first = kFirst && i == 0;
      const auto wait = [&] { inputs.full[x_at.stage].Wait(x_at.parity); };
      if constexpr (kFp8) {
        MultiplyCodes(first, i, c, held, lines, row, x, wait);
      } else {
        MultiplyHeldLines(first, c, held, lines, row, x, wait);
      }
      if (!first) Release(inputs.empty[before]);
      before = x_at.stage;
      x_at.Advance(Plan::kXStages);
    }
    Release(weights.empty[at.stage]);  // it is in registers
    at.Advance(Plan::kWeightStages);
  }

  template <bool kFp8>
  __device__ __forceinline__ void Multiply(int lines, Sums& c) {
    Start<kFp8, true>(c);
#pragma unroll 1
    for (int line = 1; line < lines; ++line) Start<kFp8, false>(c);
    WgmmaWait<0>();
    WarpgroupFenceOperand(c);
    Release(inputs.empty[before]);
  }
};

// A thread's outputs of a tile: c[4 i + e] is the sum of row `row` + 8 i + e % 2 and of output
// `output` or, if e >= 2, of the same row in W's second half.
template <typename Plan>
struct Outputs {
  using Sums = typename Plan::Sums;
  static constexpr int kUnits = Plan::kRows / 8;

  const WeightPart& a;
  int row, output;
  float scales[2];  // of the rows of W

  __device__ __forceinline__ explicit Outputs(const Tile& tile)
      : a(tile.part),
        row(tile.row + Lane() % 4 * 2),
        output(tile.weight_row + Warp() * kHalfRowsOfWarp + Lane() / 4) {
    const int rows = a.gated ? 2 * a.out : a.out;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int of_weight = output + half * a.half_offset;
      scales[half] = tile.fp8 && of_weight < rows ? a.scales[of_weight] : 1;
    }
  }

  // f(whether y has it, its place in y, i of its sum, half) for the outputs of units [first, last)
  // and of the first kHalves halves of neighbours.
  template <int kHalves, typename T, typename F>
  __device__ __forceinline__ void ForEach(T* y, int first, int last, const F& f) const {
    const int64_t stride = a.y_stride;
    T* at = y + (row + 8 * first) * stride + output;
#pragma unroll
    for (int unit = first; unit < last; ++unit) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
#pragma unroll
        for (int half = 0; half < kHalves; ++half) {
          const bool there = output + half * kHalfRows < a.out && row + 8 * unit + e < a.rows;
          f(there, at + half * kHalfRows, 4 * unit + 2 * half + e, half);
        }
        at += e == 0 ? stride : 7 * stride;
      }
    }
  }

  __device__ __forceinline__ void StoreGated(const Sums& c) const {
    ForEach<1>(a.y_bf16, 0, kUnits, [&](bool there, __nv_bfloat16* y, int i, int) {
      const float gate = __fmul_rn(c[i], scales[0]), value = __fmul_rn(c[i + 2], scales[1]);
      const __nv_bfloat16 gated = __float2bfloat16_rn(GatedRounded(value, gate, a.act));
      if (there) *y = gated;
    });
  }

  // As cuBLASLt's product, then AddBias: float32 sums are added to y before the bias, bf16 outputs
  // rounded before and after it.
  __device__ __forceinline__ void Store(const Sums& c) const {
    const bool biased = a.bias != nullptr;
    float bias[2] = {};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int at = output + half * kHalfRows;
      if (biased && at < a.out) bias[half] = a.bias[at];
    }
    if (a.y_bf16 != nullptr) {
      ForEach<2>(a.y_bf16, 0, kUnits, [&](bool there, __nv_bfloat16* y, int i, int half) {
        __nv_bfloat16 x = __float2bfloat16_rn(__fmul_rn(c[i], scales[half]));
        if (biased) x = __float2bfloat16_rn(__fadd_rn(__bfloat162float(x), bias[half]));
        if (there) *y = x;
      });
      return;
    }
    constexpr int kUnitsUnderWay = 8;  // of y's previous values
#pragma unroll
    for (int first = 0; first < kUnits; first += kUnitsUnderWay) {
      float before[4 * kUnitsUnderWay] = {};
      if (a.accumulate) {
        ForEach<2>(a.y_f32, first, first + kUnitsUnderWay,
                   [&](bool there, const float* y, int i, int) {
                     if (there) before[i - 4 * first] = *y;
                   });
      }
      ForEach<2>(
          a.y_f32, first, first + kUnitsUnderWay, [&](bool there, float* y, int i, int half) {
            const float sum = __fadd_rn(before[i - 4 * first], __fmul_rn(c[i], scales[half]));
            if (there) *y = __fadd_rn(sum, bias[half]);
          });
    }
  }
};

template <typename Plan, bool kGated>
__global__ void __launch_bounds__(kThreads, 1)
    PrefillFp8GemmKernel(const __grid_constant__ PrefillFp8Arguments a) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ unsigned char memory[];
  __shared__ Mbarrier weights_full[Plan::kWeightStages], weights_empty[Plan::kWeightStages];
  __shared__ Mbarrier inputs_full[Plan::kXStages], inputs_empty[Plan::kXStages];
  unsigned char* aligned =
      memory + (kPeriodBytes - SharedAddress(memory) % kPeriodBytes) % kPeriodBytes;
  const Ring weights{aligned, kWeightBytes, Plan::kWeightStages, weights_full, weights_empty};
  const Ring inputs{aligned + Plan::kWeightStages * kWeightBytes, Plan::kXBytes, Plan::kXStages,
                    inputs_full, inputs_empty};
  if (threadIdx.x == 0) {
    PrefetchTensorMap(&a.fp8.map);
    PrefetchTensorMap(&a.x_map);
    weights.Init(1, kReaderWarps);
    inputs.Init(1, kReaderWarps);
    PublishBarriers();
  }
  __syncthreads();
  WaitOnDependencies();
  TriggerDependents();  // not before: launch.h
  if (FromLane(static_cast<int>(threadIdx.x) / kGroupThreads, 0) == 2) {
    WarpgroupRegDealloc<24>();
    if (threadIdx.x == 2 * kGroupThreads) CopyWeights<Plan>(a, weights);
    if (threadIdx.x == 2 * kGroupThreads + kWarp) CopyInputs<Plan>(a, inputs);
    __syncwarp();
  } else {
    WarpgroupRegAlloc<240>();
    Reader<Plan> reader{weights, inputs};
    ForEachTile<Plan>(a, [&](const Tile& tile) {
      typename Plan::Sums sums;
      if (kGated || tile.fp8) {
        reader.template Multiply<true>(tile.part.lines, sums);
      } else {
        reader.template Multiply<false>(tile.part.lines, sums);
      }
      const Outputs<Plan> outputs(tile);
      if constexpr (kGated) {
        outputs.StoreGated(sums);
      } else {
        outputs.Store(sums);
      }
      __syncwarp();
    });
  }
#else
  __trap();  // compiled for something else: nothing may pass for its result
#endif
}

// The tiles and the map of the part's rows of W.
template <bool kFp8>
cudaError_t SetTiles(WeightPart* part) {
  const bool gated = part->gated;
  part->tile_rows = gated ? kHalfRows : 2 * kHalfRows;
  part->half_offset = gated ? part->out : kHalfRows;
  part->tiles = CeilDiv(part->out, part->tile_rows);
  const int64_t words = kFp8 ? Fp8Stride(part->in) / 2 : part->in;  // of 16 bits, of a row
  part->lines = CeilDiv(static_cast<int>(words), kLineWords);
  if (part->tiles == 0) return cudaSuccess;
  const void* const weight = kFp8 ? static_cast<const void*>(part->codes) : part->weight;
  return EncodeMatrixMap(const_cast<void*>(weight), int64_t{part->out} * (gated ? 2 : 1), words,
                         words, kHalfRows, kLineWords, &part->map);
}

template <typename Plan>
cudaError_t LaunchPlan(PrefillFp8Arguments a, const MatrixView& x, int multiprocessors,
                       cudaStream_t stream) {
  const auto kernel =
      a.fp8.gated ? PrefillFp8GemmKernel<Plan, true> : PrefillFp8GemmKernel<Plan, false>;
  a.row_tiles = CeilDiv(a.fp8.rows, Plan::kRows);
  for (const cudaError_t error :
       {EncodeMatrixMap(x.data, x.rows, x.cols, x.row_stride, Plan::kRows, kLineWords, &a.x_map),
        AllowDynamicSmem<Plan::kSmemBytes, kHopperSmem>(KernelAddress(kernel))}) {
    if (error != cudaSuccess) return error;
  }
  const int blocks = std::min((a.fp8.tiles + a.rest.tiles) * a.row_tiles, multiprocessors);
  return Launch(kernel, dim3(static_cast<unsigned>(blocks)), dim3(kThreads),
                SmemConfig(static_cast<size_t>(Plan::kSmemBytes)), stream, a);
}

}  // namespace

cudaError_t PrefillFp8Gemm(const MatrixView& x, const LinearParams& params, int multiprocessors,
                           cudaStream_t stream) {
  const DeviceWeight& weight = OnDevice(params.weight);
  FOX_CHECK(x.rows >= 1 && x.rows == params.out.rows);
  FOX_CHECK(x.dtype == DType::kBF16 && x.cols == weight.in() && x.row_stride % 8 == 0);
  FOX_CHECK(weight.fp8().rows > 0 && (!params.gate || weight.fp8().rows == weight.out()));
  PrefillFp8Arguments a{};
  static_cast<GemmArguments&>(a.fp8) = MakeGemmArguments(params);
  a.rest = a.fp8;
  if (!params.gate) a.fp8.out = static_cast<int>(weight.fp8().rows);
  a.rest.SkipOutputs(a.fp8.out);
  for (const cudaError_t error : {SetTiles<true>(&a.fp8), SetTiles<false>(&a.rest)}) {
    if (error != cudaSuccess) return error;
  }
  // A plan's time is the number of tiles of the busiest block times the time of one tile. The unit
  // is a hundredth of the time that 64 rows of x take in a tile of 256. For a product, tiles of
  // fewer rows read more shared memory and widen more codes, so 64 rows take longer there.
  const auto time = [&](int rows, int of_tile) {
    const int tiles = (a.fp8.tiles + a.rest.tiles) * CeilDiv(a.fp8.rows, rows);
    return CeilDiv(tiles, multiprocessors) * of_tile;
  };
  const int wide = time(256, 400), middle = time(128, 210), narrow = time(64, 150);
  const auto launch = wide <= std::min(middle, narrow) ? LaunchPlan<TilePlan<256>>
                      : middle <= narrow               ? LaunchPlan<TilePlan<128>>
                                                       : LaunchPlan<TilePlan<64>>;
  return launch(a, x, multiprocessors, stream);
}

}  // namespace fox::cuda
