// The kernel of PrefillGemm: tiles of y, the ring of operands, warps that copy and multiply, and
// how the halves of a product meet. Read prefill_gemm.cu first.
#pragma once

#include <cuda.h>
#include <cuda_bf16.h>

#include <cstdint>

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

namespace fox::cuda::prefill_gemm {

inline constexpr int kGroupRows = 64;  // of x, of the 128 threads that multiply together
inline constexpr int kGroupThreads = 128;
inline constexpr int kThreads = 3 * kGroupThreads;  // two groups multiply, one copies
inline constexpr int kTileRows = 2 * kGroupRows;
inline constexpr int kTileCols = 64;  // of x and W at a time: 128 bytes, a line of the swizzle
inline constexpr int kStep = 16;      // columns of one tensor core product
inline constexpr int kUnit = 16;      // outputs that a group finishes at a time
inline constexpr int kLineBytes = kTileCols * 2;
inline constexpr int kPeriodBytes = 8 * kLineBytes;  // of the swizzle
inline constexpr int kXBytes = kTileRows * kLineBytes;
inline constexpr int kRingBytes = 192 * 1024;
// What a group stores in one copy: 64 rows of y by a line.
inline constexpr int kBoxBytes = kGroupRows * kLineBytes;
inline constexpr int kBoxOutputs = kTileCols;
inline constexpr int kBand = 16;

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
// column, so that what runs at a time reads little of x and W.
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

// One thread. A stage has a chunk: 128 rows of x, then of W the gate's and the value's.
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

// A group's way through the ring.
template <typename Plan>
struct GroupReader {
  using Sums = float[Plan::kOutputs];  // half of them the gate's

  Ring ring;
  int group;
  RingPlace at = {};
  int before = 0;  // stage of the products under way

  // The products under way have read it.
  __device__ __forceinline__ void Release() const {
    if (Lane() == 0) ring.empty[before].Arrive();
  }

  // Starts the products of the next chunk: c = them if kFirst, else c += them. Those under way
  // before are done when it returns.
  template <bool kFirst>
  __device__ __forceinline__ void Start(Sums& c) {
    const uint64_t x = Descriptor(ring.At(at.stage) + group * kGroupRows * kLineBytes);
    const uint64_t w = Descriptor(ring.At(at.stage) + kXBytes);
    ring.full[at.stage].Wait(at.parity);
    WgmmaFence();
#pragma unroll
    for (int step = 0; step < kTileCols / kStep; ++step) {
      const int offset = step * kStep * 2 / 16;
      if (kFirst && step == 0) {
        WgmmaQk<true>(c, x + offset, w + offset);
      } else {
        WgmmaQk<false>(c, x + offset, w + offset);
      }
    }
    WgmmaCommit();
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

 private:
  __device__ __forceinline__ static uint64_t Descriptor(const unsigned char* tile) {
    return MatrixDescriptor(SharedAddress(tile), 16, kPeriodBytes, Swizzle::k128);
  }
};

// A group's sums of a tile, rounded, until its outputs leave: computed and stored unit by unit
// while the next tile is multiplied.
template <typename Plan>
struct HeldTile {
  static constexpr int kUnits = Plan::kOutputs / kUnit;

  // Of a unit, as in the sums (wgmma.cuh): two outputs of the first row and two of the second, 8
  // rows further down; then the same 8 outputs further on.
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

  // Outputs act(gate) * value of the next unit, in order, into the group's boxes. The last one
  // sends them off.
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
  // A thread of the group that starts its copies and waits for them.
  __device__ __forceinline__ static bool IsCopier() { return threadIdx.x % kGroupThreads == 0; }
  __device__ __forceinline__ static void SyncGroup() {
    SyncThreads<kGroupThreads>(1 + static_cast<int>(threadIdx.x) / kGroupThreads);
  }

  // The tile before has left them.
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
  TriggerDependents();
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

}  // namespace fox::cuda::prefill_gemm
