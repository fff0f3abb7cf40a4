// The kernel of PrefillGemm: tiles of y, the ring of operands, who copies and who multiplies, and
// how the halves of a product meet. Read prefill_gemm.cu first.
#pragma once

#include <cuda.h>
#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/cuda/linear/input_transform.cuh"
#include "kernels/cuda/primitives/vec8.cuh"
#include "kernels/cuda/primitives/warp.cuh"
#include "kernels/cuda/ptx/dependent_launch.cuh"
#include "kernels/cuda/ptx/mbarrier.cuh"
#include "kernels/cuda/ptx/tma.cuh"
#include "kernels/cuda/ptx/wgmma.cuh"

namespace fox::cuda::prefill_gemm {

inline constexpr int kGroupRows = 64;  // of x, of the 128 threads that multiply together
inline constexpr int kGroupThreads = 128;
inline constexpr int kThreads = 3 * kGroupThreads;  // two groups multiply, one copies
inline constexpr int kTileRows = 2 * kGroupRows;
inline constexpr int kTileCols = 64;  // of x and W at a time: 128 bytes, a line of the swizzle
inline constexpr int kStep = 16;      // columns of one tensor core product
inline constexpr int kUnit = 16;      // outputs that four lanes store of a row at a time
inline constexpr int kLineBytes = kTileCols * 2;
inline constexpr int kPeriodBytes = 8 * kLineBytes;  // of the swizzle
inline constexpr int kXBytes = kTileRows * kLineBytes;
inline constexpr int kRingBytes = 200 * 1024;
inline constexpr int kBand = 16;

// kOutputs: of a tile, which takes as many rows of W from both halves.
template <int kOutputsOfTile>
struct TilePlan {
  static constexpr int kOutputs = kOutputsOfTile;
  static constexpr int kHalfBytes = kOutputs * kLineBytes;
  static constexpr int kStageBytes = kXBytes + 2 * kHalfBytes;
  static constexpr int kStages = kRingBytes / kStageBytes;
  static constexpr int kSmemBytes = kStages * kStageBytes + kPeriodBytes;
};

struct PrefillGemmArguments {
  CUtensorMap weight_map, x_map;
  int rows, out;
  int chunks;              // of columns
  int columns, row_tiles;  // of tiles
  Activation act;
  __nv_bfloat16* y;
  int64_t y_stride;
  bool vectors;  // y may be accessed by four elements
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

// Stages of a chunk each: 128 rows of x, then of W the gate's and the value's. Two barriers a
// stage, "has arrived" and "has been read".
template <typename Plan>
struct ChunkRing {
  unsigned char* stages;
  Mbarrier* full;
  Mbarrier* empty;

  __device__ __forceinline__ unsigned char* x(int stage) const {
    return stages + stage * Plan::kStageBytes;
  }
  __device__ __forceinline__ unsigned char* weight(int stage) const { return x(stage) + kXBytes; }
};

template <typename Plan>
struct ChunkPlace {
  int stage = 0;
  uint32_t parity = 0;

  __device__ __forceinline__ void Advance() {
    if (++stage == Plan::kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

// One thread.
template <typename Plan>
__device__ __forceinline__ void CopyTiles(const PrefillGemmArguments& a,
                                          const ChunkRing<Plan>& ring) {
  ChunkPlace<Plan> at;
  ForEachTile<Plan>(a, [&](const Tile& tile) {
#pragma unroll 1
    for (int chunk = 0; chunk < a.chunks; ++chunk) {
      const int column = chunk * kTileCols;
      Mbarrier* full = &ring.full[at.stage];
      unsigned char* weight = ring.weight(at.stage);
      ring.empty[at.stage].Wait(at.parity ^ 1);
      full->ArriveAndExpect(Plan::kStageBytes);
      TmaLoad2D(ring.x(at.stage), &a.x_map, column, tile.row, full);
      TmaLoad2D(weight, &a.weight_map, column, tile.output, full);
      TmaLoad2D(weight + Plan::kHalfBytes, &a.weight_map, column, a.out + tile.output, full);
      at.Advance();
    }
  });
}

// A group's way through the ring.
template <typename Plan>
struct GroupReader {
  using Sums = float[Plan::kOutputs];  // half of them the gate's

  ChunkRing<Plan> ring;
  int group;
  ChunkPlace<Plan> at = {};
  int before = 0;  // stage of the products under way

  // The products under way have read it.
  __device__ __forceinline__ void Release() const {
    if (Lane() == 0) ring.empty[before].Arrive();
  }

  // Starts the products of the next chunk: c = them if kFirst, else c += them. Those under way
  // before are done when it returns.
  template <bool kFirst>
  __device__ __forceinline__ void Start(Sums& c) {
    const uint64_t x = Descriptor(ring.x(at.stage) + group * kGroupRows * kLineBytes);
    const uint64_t w = Descriptor(ring.weight(at.stage));
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
    at.Advance();
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

__device__ __forceinline__ uint4 Rounded(const float* x) {
  return ToBf16x8({{x[0], x[1], x[2], x[3], x[4], x[5], x[6], x[7]}});
}

// A group's outputs of a tile, rounded, on their way to memory: they are stored unit by unit while
// the next tile is multiplied.
template <typename Plan>
struct GatedTile {
  static constexpr int kUnits = Plan::kOutputs / kUnit;

  // Of a unit, as in the sums (wgmma.cuh): two outputs of the first row and two of the second, 8
  // rows further down; then the same 8 outputs further on.
  uint4 units[kUnits];
  int row, output;  // the first that this thread stores; row + 8 is the other one

  // act(gate) * value of the sums' halves, both as bf16 would hold them: the bits of a product that
  // rounds its outputs and a transform behind it.
  __device__ __forceinline__ void Take(const PrefillGemmArguments& a, const Tile& tile,
                                       const typename GroupReader<Plan>::Sums& sums) {
#pragma unroll
    for (int unit = 0; unit < kUnits; ++unit) {
      const float* gate = sums + unit * kVec8;
      const float* value = gate + kUnits * kVec8;
      units[unit] = ToBf16x8(transform::Gated(Widen(Rounded(value)), Widen(Rounded(gate)), a.act));
    }
    row = tile.row + Warp() % 4 * 16 + Lane() / 4;
    output = tile.output + Lane() % 2 * 8 + Lane() / 2 % 2 * 4;
  }

  // Exchanges with the neighbour, so that each has four outputs in a line.
  __device__ __forceinline__ void Store(const PrefillGemmArguments& a, int unit) const {
    const uint4& own = units[unit];
    const bool odd = Lane() % 2 != 0;
    const uint32_t first = FromLaneXor(odd ? own.x : own.z, 1);
    const uint32_t second = FromLaneXor(odd ? own.y : own.w, 1);
    StoreFour(a, row, unit, odd ? uint2{first, own.z} : uint2{own.x, first});
    StoreFour(a, row + 8, unit, odd ? uint2{second, own.w} : uint2{own.y, second});
  }

 private:
  __device__ __forceinline__ void StoreFour(const PrefillGemmArguments& a, int n, int unit,
                                            const uint2& four) const {
    const int at = output + unit * kUnit;
    if (n >= a.rows) return;
    __nv_bfloat16* y = a.y + n * a.y_stride + at;
    if (a.vectors && at + 4 <= a.out) {
      *reinterpret_cast<uint2*>(y) = four;
      return;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t pair = i < 2 ? four.x : four.y;
      if (at + i < a.out) y[i] = __ushort_as_bfloat16(static_cast<uint16_t>(pair >> i % 2 * 16));
    }
  }
};

// By the 128 threads of a group.
template <typename Plan>
__device__ __forceinline__ void Multiply(const PrefillGemmArguments& a, const ChunkRing<Plan>& ring,
                                         int group) {
  GroupReader<Plan> reader{ring, group};
  GatedTile<Plan> before;
  bool any_before = false;
  ForEachTile<Plan>(a, [&](Tile tile) {
    tile.row += group * kGroupRows;
    typename GroupReader<Plan>::Sums sums;
    reader.template Start<true>(sums);
    int chunk = 1;
#pragma unroll
    for (int unit = 0; unit < GatedTile<Plan>::kUnits; ++unit) {
      if (any_before) before.Store(a, unit);
      if (chunk++ < a.chunks) reader.template Start<false>(sums);
    }
#pragma unroll 1
    while (chunk++ < a.chunks) reader.template Start<false>(sums);
    reader.Finish(sums);
    before.Take(a, tile, sums);
    any_before = true;
  });
  if (!any_before) return;
#pragma unroll
  for (int unit = 0; unit < GatedTile<Plan>::kUnits; ++unit) before.Store(a, unit);
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
  const ChunkRing<Plan> ring{aligned, full, empty};
  const int group = FromLane(static_cast<int>(threadIdx.x) / kGroupThreads, 0);
  if (threadIdx.x == 0) {
    PrefetchTensorMap(&a.weight_map);
    PrefetchTensorMap(&a.x_map);
    for (int s = 0; s < Plan::kStages; ++s) {
      full[s].Init(1);
      empty[s].Init(kReaders);
    }
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
    Multiply<Plan>(a, ring, group);
  }
#else
  __trap();  // compiled for something else: nothing may pass for its result
#endif
}

}  // namespace fox::cuda::prefill_gemm
