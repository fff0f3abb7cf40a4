// Tiles of 128 rows of x and of 128 or 64 outputs, which take 256 or 128 rows of W: a block on
// every SM goes on from tile to tile. Two warpgroups multiply 64 rows each; one thread of a third
// copies by TMA, tiles ahead, into a ring of chunks of 64 columns. A finished tile's sums wait in
// registers, rounded: its activations and stores run while the next tile is multiplied.
//
// Bits (prefill_gemm.md): columns are summed from left to right, 16 at a time, in one chain from
// zero, which depends neither on the tile nor on the row's place in it; then the halves are gated
// as in GateRows.
#include <cuda.h>
#include <cuda_bf16.h>

#include <algorithm>
#include <cstdint>

#include "kernels/core/check.h"
#include "kernels/cuda/linear/device_weight.h"
#include "kernels/cuda/linear/gemm_kernels.h"
#include "kernels/cuda/primitives/norm_and_gate.cuh"
#include "kernels/cuda/primitives/ring.cuh"
#include "kernels/cuda/primitives/vec8.cuh"
#include "kernels/cuda/primitives/warp.cuh"
#include "kernels/cuda/ptx/dependent_launch.cuh"
#include "kernels/cuda/ptx/mbarrier.cuh"
#include "kernels/cuda/ptx/named_barrier.cuh"
#include "kernels/cuda/ptx/shared_memory.cuh"
#include "kernels/cuda/ptx/tma.cuh"
#include "kernels/cuda/ptx/wgmma.cuh"
#include "kernels/cuda/runtime/launch.h"
#include "kernels/cuda/runtime/tensor_map.h"

namespace fox::cuda {
namespace {

constexpr int kGroupRows = 64;  // of x, of the 128 threads that multiply together
constexpr int kGroupThreads = 128;
constexpr int kThreads = 3 * kGroupThreads;  // two groups multiply, one copies
constexpr int kTileRows = 2 * kGroupRows;
constexpr int kTileCols = 64;  // of x and W at a time: 128 bytes, a line of the swizzle
constexpr int kUnit = 16;      // outputs that a group finishes at a time
constexpr int kLineBytes = kTileCols * 2;
constexpr int kPeriodBytes = 8 * kLineBytes;  // of the swizzle
constexpr int kXBytes = kTileRows * kLineBytes;
constexpr int kRingBytes = 192 * 1024;
// The unit of a group's stores: 64 rows of y by a line.
constexpr int kBoxBytes = kGroupRows * kLineBytes;
constexpr int kBoxOutputs = kTileCols;
[[maybe_unused]] constexpr int kBand = 16;

// kOutputs: of a tile, which takes as many rows of W from both halves.
template <int kOutputsOfTile>
struct TilePlan {
  static constexpr int kOutputs = kOutputsOfTile;
  static constexpr int kHalfBytes = kOutputs * kLineBytes;
  static constexpr int kStageBytes = kXBytes + 2 * kHalfBytes;
  static constexpr int kStages = kRingBytes / kStageBytes;
  static constexpr int kBoxes = kOutputs / kBoxOutputs;  // of a group's outputs
  static constexpr int kSmemBytes = kStages * kStageBytes + 2 * kBoxes * kBoxBytes + kPeriodBytes;
};

struct PrefillGemmArguments {
  CUtensorMap weight_map, x_map, y_map;
  int rows, out;
  int chunks;              // of columns
  int columns, row_tiles;  // of tiles
  Activation act;
};

// A tile's first row of x and its first output.
struct Tile {
  int row, output;
};

// f(tile) for the block's tiles. They go down kBand tiles of rows before they go to the next
// column, so that tiles that run at the same time read little of x and W.
template <typename Plan, typename F>
__device__ __forceinline__ void ForEachTile(const PrefillGemmArguments& a, const F& f) {
  const int of_band = kBand * a.columns, tiles = a.row_tiles * a.columns;
#pragma unroll 1
  for (int i = static_cast<int>(blockIdx.x); i < tiles; i += static_cast<int>(gridDim.x)) {
    const int first = i / of_band * kBand, within = i % of_band;
    const int height = min(kBand, a.row_tiles - first);
    f(Tile{(first + within % height) * kTileRows, within / height * Plan::kOutputs});
  }
}

// One thread. A stage has a chunk: 128 rows of x, then W's rows of the gate and of the value.
template <typename Plan>
__device__ __forceinline__ void CopyTiles(const PrefillGemmArguments& a, const Ring& ring) {
  RingPlace at;
  ForEachTile<Plan>(a, [&](const Tile& tile) {
#pragma unroll 1
    for (int chunk = 0; chunk < a.chunks; ++chunk) {
      const int column = chunk * kTileCols;
      Mbarrier* full = &ring.full[at.stage];
      unsigned char* x = ring.At(at.stage);
      unsigned char* weight = x + kXBytes;
      ring.empty[at.stage].Wait(at.parity ^ 1);
      full->ArriveAndExpect(Plan::kStageBytes);
      TmaLoad2D(x, &a.x_map, column, tile.row, full);
      TmaLoad2D(weight, &a.weight_map, column, tile.output, full);
      TmaLoad2D(weight + Plan::kHalfBytes, &a.weight_map, column, a.out + tile.output, full);
      at.Advance(Plan::kStages);
    }
  });
}

// Takes chunks from the ring and multiplies them; for a group.
template <typename Plan>
struct GroupReader {
  using Sums = float[Plan::kOutputs];  // half of them the gate's

  Ring ring;
  int group;
  RingPlace at = {};
  int before = 0;  // stage of the products under way

  // Frees the stage of the products that were under way; they must have read it.
  __device__ __forceinline__ void Release() const {
    if (Lane() == 0) ring.empty[before].Arrive();
  }

  // Starts the products of the next chunk: c = products if kFirst, else c += products. Earlier
  // products are done when it returns.
  template <bool kFirst>
  __device__ __forceinline__ void Start(Sums& c) {
    const uint64_t x = LinesDescriptor(ring.At(at.stage) + group * kGroupRows * kLineBytes);
    const uint64_t w = LinesDescriptor(ring.At(at.stage) + kXBytes);
    ring.full[at.stage].Wait(at.parity);
    MultiplyLines(kFirst, c, x, w);
    if constexpr (!kFirst) {
      WgmmaWait<1>();
      Release();
    }
    before = at.stage;
    at.Advance(Plan::kStages);
  }

  __device__ __forceinline__ void Finish(Sums& c) const {
    WgmmaWait<0>();
    WarpgroupFenceOperand(c);
    Release();
  }
};

// A group's sums of a tile, rounded, until its outputs leave: computed and stored unit by unit
// while the next tile is multiplied.
template <typename Plan>
struct HeldTile {
  static constexpr int kUnits = Plan::kOutputs / kUnit;

  // Layout of a unit, as in the sums (wgmma.cuh): two outputs of the first row and two of the
  // second, which is 8 rows further down; then both again 8 outputs further on.
  uint4 gate[kUnits], value[kUnits];
  Tile tile;

  __device__ __forceinline__ void Take(const Tile& of,
                                       const typename GroupReader<Plan>::Sums& sums) {
    const auto rounded = [](const float* x) -> uint4 {
      return {PackBf16(x[0], x[1]), PackBf16(x[2], x[3]), PackBf16(x[4], x[5]),
              PackBf16(x[6], x[7])};
    };
#pragma unroll
    for (int unit = 0; unit < kUnits; ++unit) {
      gate[unit] = rounded(sums + unit * kVec8);
      value[unit] = rounded(sums + (kUnits + unit) * kVec8);
    }
    tile = of;
  }

  // Puts the outputs act(gate) * value of the next unit, in order, into the group's boxes. The last
  // unit starts their copies.
  __device__ __forceinline__ void Store(const PrefillGemmArguments& a, int unit,
                                        unsigned char* boxes) const {
    constexpr int kUnitsOfBox = kBoxOutputs / kUnit;
    if (unit == 0) WaitForBoxes();
    const uint4 outputs = ToBf16x8(Gated(Widen(value[unit]), Widen(gate[unit]), a.act));
    const int row = Warp() % 4 * 16 + Lane() % 16, swizzle = row % 8;
    const int vector = unit % kUnitsOfBox * 2 + Lane() / 16;  // of a line
    StoreMatrices(SharedAddress(boxes + unit / kUnitsOfBox * kBoxBytes + row * kLineBytes +
                                (vector ^ swizzle) * static_cast<int>(sizeof(uint4))),
                  outputs);
    if (unit == kUnits - 1) SendBoxes(a, boxes);
  }

 private:
  // True in the thread of the group that starts its copies and waits for them.
  __device__ __forceinline__ static bool IsCopier() { return threadIdx.x % kGroupThreads == 0; }
  __device__ __forceinline__ static void SyncGroup() {
    SyncThreads<kGroupThreads>(1 + static_cast<int>(threadIdx.x) / kGroupThreads);
  }

  // Waits until the previous tile's copies have read the boxes.
  __device__ __forceinline__ static void WaitForBoxes() {
    if (IsCopier()) BulkWaitRead();
    __syncwarp();
    SyncGroup();
  }

  __device__ __forceinline__ void SendBoxes(const PrefillGemmArguments& a,
                                            const unsigned char* boxes) const {
    FenceAsyncProxy();
    SyncGroup();
    if (IsCopier()) {
#pragma unroll
      for (int box = 0; box < Plan::kBoxes; ++box) {
        TmaStore2D(&a.y_map, tile.output + box * kBoxOutputs, tile.row, boxes + box * kBoxBytes);
      }
      BulkCommit();
    }
    __syncwarp();
  }
};

// By the 128 threads of a group.
template <typename Plan>
__device__ __forceinline__ void Multiply(const PrefillGemmArguments& a, const Ring& ring, int group,
                                         unsigned char* boxes) {
  GroupReader<Plan> reader{ring, group};
  HeldTile<Plan> held;
  bool holds = false;
  ForEachTile<Plan>(a, [&](Tile tile) {
    tile.row += group * kGroupRows;
    typename GroupReader<Plan>::Sums sums;
    reader.template Start<true>(sums);
    int chunk = 1;
#pragma unroll
    for (int unit = 0; unit < HeldTile<Plan>::kUnits; ++unit) {
      if (holds) held.Store(a, unit, boxes);
      if (chunk++ < a.chunks) reader.template Start<false>(sums);
    }
#pragma unroll 1
    while (chunk++ < a.chunks) reader.template Start<false>(sums);
    reader.Finish(sums);
    held.Take(tile, sums);
    holds = true;
  });
  if (!holds) return;
#pragma unroll
  for (int unit = 0; unit < HeldTile<Plan>::kUnits; ++unit) held.Store(a, unit, boxes);
  BulkWait();  // of the thread that copies: the others have nothing to wait for
}

template <typename Plan>
__global__ void __launch_bounds__(kThreads, 1)
    PrefillGemmKernel(const __grid_constant__ PrefillGemmArguments a) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ unsigned char memory[];
  __shared__ Mbarrier full[Plan::kStages], empty[Plan::kStages];
  constexpr int kReaders = 2 * kGroupThreads / kWarp;
  unsigned char* aligned =
      memory + (kPeriodBytes - SharedAddress(memory) % kPeriodBytes) % kPeriodBytes;
  const Ring ring{aligned, Plan::kStageBytes, Plan::kStages, full, empty};
  const int group = FromLane(static_cast<int>(threadIdx.x) / kGroupThreads, 0);
  if (threadIdx.x == 0) {
    PrefetchTensorMap(&a.weight_map);
    PrefetchTensorMap(&a.x_map);
    PrefetchTensorMap(&a.y_map);
    ring.Init(1, kReaders);
    PublishBarriers();
  }
  __syncthreads();
  WaitOnDependencies();
  TriggerDependents();  // not before: launch.h
  if (group == 2) {
    WarpgroupRegDealloc<24>();
    if (threadIdx.x == 2 * kGroupThreads) CopyTiles<Plan>(a, ring);
    __syncwarp();
  } else {
    WarpgroupRegAlloc<240>();
    unsigned char* boxes = aligned + Plan::kStages * Plan::kStageBytes;
    Multiply<Plan>(a, ring, group, boxes + group * Plan::kBoxes * kBoxBytes);
  }
#else
  __trap();  // compiled for something else: nothing may pass for its result
#endif
}

using WidePlan = TilePlan<128>;
using NarrowPlan = TilePlan<64>;

template <typename Plan>
cudaError_t LaunchPlan(PrefillGemmArguments a, const MatrixView& x, const DeviceWeight& weight,
                       const MatrixView& y, int multiprocessors, cudaStream_t stream) {
  a.columns = CeilDiv(a.out, Plan::kOutputs);
  a.row_tiles = CeilDiv(a.rows, kTileRows);
  const auto kernel = PrefillGemmKernel<Plan>;
  for (const cudaError_t error :
       {EncodeMatrixMap(const_cast<void*>(weight.data()), weight.out(), weight.in(), weight.in(),
                        Plan::kOutputs, kTileCols, &a.weight_map),
        EncodeMatrixMap(x.data, x.rows, x.cols, x.row_stride, kTileRows, kTileCols, &a.x_map),
        EncodeMatrixMap(y.data, y.rows, y.cols, y.row_stride, kGroupRows, kBoxOutputs, &a.y_map),
        AllowDynamicSmem<Plan::kSmemBytes, kHopperSmem>(KernelAddress(kernel))}) {
    if (error != cudaSuccess) return error;
  }
  const int blocks = std::min(a.columns * a.row_tiles, multiprocessors);
  return Launch(kernel, dim3(static_cast<unsigned>(blocks)), dim3(kThreads),
                SmemConfig(static_cast<size_t>(Plan::kSmemBytes)), stream, a);
}

// Tiles that the busiest block computes.
template <typename Plan>
int RoundsOf(const PrefillGemmArguments& a, int multiprocessors) {
  return CeilDiv(CeilDiv(a.rows, kTileRows) * CeilDiv(a.out, Plan::kOutputs), multiprocessors);
}

// A narrow tile takes 13% more than half of a wide one's time.
bool TakesNarrow(const PrefillGemmArguments& a, int multiprocessors) {
  return 113 * RoundsOf<NarrowPlan>(a, multiprocessors) <
         200 * RoundsOf<WidePlan>(a, multiprocessors);
}

}  // namespace

cudaError_t PrefillGemm(const MatrixView& x, const LinearParams& params, int multiprocessors,
                        cudaStream_t stream) {
  const DeviceWeight& weight = OnDevice(params.weight);
  const MatrixView& y = params.out;
  FOX_CHECK(params.gate && x.rows >= 1 && x.rows == y.rows && x.rows <= INT32_MAX);
  FOX_CHECK(x.dtype == DType::kBF16 && x.cols == weight.in() && x.row_stride % 8 == 0);
  FOX_CHECK(weight.out() == 2 * y.cols && weight.out() <= INT32_MAX && weight.in() <= INT32_MAX);
  FOX_CHECK(y.dtype == DType::kBF16 && y.cols % 8 == 0 && y.row_stride % 8 == 0);
  FOX_CHECK(reinterpret_cast<uintptr_t>(y.data) % 16 == 0);
  PrefillGemmArguments a{};
  a.rows = static_cast<int>(x.rows);
  a.out = static_cast<int>(y.cols);
  a.chunks = CeilDiv(static_cast<int>(weight.in()), kTileCols);
  a.act = *params.gate;
  const auto launch =
      TakesNarrow(a, multiprocessors) ? LaunchPlan<NarrowPlan> : LaunchPlan<WidePlan>;
  return launch(a, x, weight, y, multiprocessors, stream);
}

}  // namespace fox::cuda
