// The kernel of ClusterGemm: a block's work of a product, its two rings of tiles, warps that copy
// and warps that multiply. Read cluster_gemm.cu first.
#pragma once

#include <bit>
#include <cstdint>

#include "kernels/cuda/linear/cluster_gemm_arguments.cuh"
#include "kernels/cuda/linear/cluster_gemm_epilogue.cuh"
#include "kernels/cuda/primitives/ring.cuh"
#include "kernels/cuda/primitives/warp.cuh"
#include "kernels/cuda/ptx/cluster.cuh"
#include "kernels/cuda/ptx/dependent_launch.cuh"
#include "kernels/cuda/ptx/mbarrier.cuh"
#include "kernels/cuda/ptx/named_barrier.cuh"
#include "kernels/cuda/ptx/tma.cuh"
#include "kernels/cuda/ptx/wgmma.cuh"

namespace fox::cuda::cluster_gemm {

// What a block computes: the outputs of every `tile_step`-th tile from `tile` on, summed over the
// classes [first_class, last_class).
struct BlockWork {
  int tile, tile_step, first_class, last_class;

  // f(tile, chunk) in the order in which both rings are filled and read.
  template <typename F>
  __device__ __forceinline__ void ForEachChunk(const ClusterGemmArguments& a, const F& f) const {
    for (int t = tile; t < a.tiles; t += tile_step) {
      for (int first = first_class; first < last_class; ++first) {
#pragma unroll 1
        for (int i = 0; i < a.class_chunks; ++i) f(t, first + i * kClasses);
      }
    }
  }
};

template <int kSplits>
__device__ __forceinline__ BlockWork BlockWorkOf() {
  constexpr int kBlockClasses = kClasses / kSplits;
  const int block = static_cast<int>(blockIdx.x), first = block % kSplits * kBlockClasses;
  return {block / kSplits, static_cast<int>(gridDim.x) / kSplits, first, first + kBlockClasses};
}

// One thread. At most `under_way` tiles are on their way: enough to keep the memory busy; more
// would only make all other loads wait, those of the kernel before among them.
__device__ __forceinline__ void CopyWeights(const ClusterGemmArguments& a, const BlockWork& work,
                                            const Ring& ring) {
  RingPlace at, arrived;
  int started = 0;
  work.ForEachChunk(a, [&](int tile, int chunk) {
    if (started++ >= a.under_way) {
      ring.full[arrived.stage].Wait(arrived.parity);
      arrived.Advance(ring.stages);
    }
    ring.empty[at.stage].Wait(at.parity ^ 1);
    ring.full[at.stage].ArriveAndExpect(kWeightBytes);
    unsigned char* to = ring.At(at.stage);
    const int row = tile * a.tile_rows, col = chunk * kTileCols;
    TmaLoad2D(to, &a.weight_map, col, row, &ring.full[at.stage]);
    TmaLoad2D(to + kWeightBytes / 2, &a.weight_map, col, row + a.half_offset, &ring.full[at.stage]);
    at.Advance(ring.stages);
  });
}

// One thread.
__device__ __forceinline__ void CopyInputs(const ClusterGemmArguments& a, const BlockWork& work,
                                           const Ring& ring) {
  RingPlace at;
  work.ForEachChunk(a, [&](int, int chunk) {
    ring.empty[at.stage].Wait(at.parity ^ 1);
    ring.full[at.stage].ArriveAndExpect(static_cast<uint32_t>(ring.stage_bytes));
    TmaLoad2D(ring.At(at.stage), &a.x_map, chunk * kTileCols, 0, &ring.full[at.stage]);
    at.Advance(ring.stages);
  });
}

// Once the first `done` classes are summed: adds what thereby is a tree's right half to its left
// one. sums[k] begins as class k's and waits as that of a subtree whose first class is k. With
// kFirstInMemory sums[0] moves to `first`, as soon as it is there, and waits there.
template <int kRows, int kSplits>
__device__ __forceinline__ void AddHalves(int done, float* first,
                                          float (&sums)[kClasses / kSplits][kSumsOfThread<kRows>]) {
  constexpr bool kInMemory = kFirstInMemory<kRows, kSplits>;
  constexpr int kCount = kSumsOfThread<kRows>;
  WarpgroupFenceOperand(sums[done - 1]);
  if (kInMemory && done == 1) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) first[SumPlace<kRows>(i).Offset()] = sums[0][i];
  }
#pragma unroll
  for (int half = 1; half < kClasses / kSplits; half *= 2) {
    if (done % (2 * half) != 0) continue;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const bool in_memory = kInMemory && done == 2 * half;
      float& left = in_memory ? first[SumPlace<kRows>(i).Offset()] : sums[done - 2 * half][i];
      left = __fadd_rn(left, sums[done - half][i]);
    }
  }
}

// The multiplying warps' way through both rings.
template <int kRows, int kSplits>
struct Reader {
  static constexpr int kBlockClasses = kClasses / kSplits;
  using Sums = float[kSumsOfThread<kRows>];

  Ring weights, inputs;
  RingPlace weight_at, input_at;
  int weight_before = 0, input_before = 0;  // stages of the products under way

  // The products under way have read these.
  __device__ __forceinline__ void Release() const {
    if (Lane() != 0) return;
    weights.empty[weight_before].Arrive();
    inputs.empty[input_before].Arrive();
  }

  // Starts the products of the next tiles: c = them if `first`, else c += them. Those under way
  // before, if any, are done when it returns.
  __device__ __forceinline__ void Start(bool first, bool any_before, Sums& c) {
    constexpr bool kGroups = kRows > kGroupRows;
    const int warpgroup = Warp() / (kGroupWarps / 2);
    const int half = kGroups ? warpgroup % 2 : warpgroup, group = kGroups ? warpgroup / 2 : 0;
    const uint64_t w = TileDescriptor(weights.At(weight_at.stage) + half * kHalfOut * kLineBytes);
    const uint64_t x = TileDescriptor(inputs.At(input_at.stage) + group * kGroupRows * kLineBytes);
    weights.full[weight_at.stage].Wait(weight_at.parity);
    inputs.full[input_at.stage].Wait(input_at.parity);
    WgmmaFence();
#pragma unroll
    for (int step = 0; step < kTileCols / kStep; ++step) {
      const int at = step * kStep * 2 / 16;
      if (first && step == 0) {
        WgmmaQk<true>(c, w + at, x + at);
      } else {
        WgmmaQk<false>(c, w + at, x + at);
      }
    }
    WgmmaCommit();
    if (any_before) {
      WgmmaWait<1>();
      Release();
    }
    weight_before = weight_at.stage;
    input_before = input_at.stage;
    weight_at.Advance(weights.stages);
    input_at.Advance(inputs.stages);
  }

  // sums[0] (`memory`: AddHalves) = the warpgroup's sums over kBlockClasses classes of `chunks`
  // tiles, which then have been read. A class's products run before the sums of the one before are
  // added to others.
  __device__ __forceinline__ void Multiply(int chunks, float* memory, Sums (&sums)[kBlockClasses]) {
#pragma unroll
    for (int k = 0; k < kBlockClasses; ++k) {
      Start(true, k > 0, sums[k]);
      if (k > 0) AddHalves<kRows, kSplits>(k, memory, sums);
#pragma unroll 1
      for (int i = 1; i < chunks; ++i) Start(false, true, sums[k]);
    }
    WgmmaWait<0>();
    AddHalves<kRows, kSplits>(kBlockClasses, memory, sums);
    Release();
  }

 private:
  __device__ __forceinline__ static uint64_t TileDescriptor(const unsigned char* tile) {
    return MatrixDescriptor(SharedAddress(tile), 16, kGroupBytes, Swizzle::k128);
  }
};

// Two, where the registers for sums suffice: a block of another kernel may share the SM.
template <int kRows, int kSplits>
inline constexpr int kBlocksOfAnSm = kRows / 2 * std::bit_width(unsigned{kClasses / kSplits}) <= 48
                                         ? 2
                                         : 1;

// For at most kRows rows, W's columns split among kSplits blocks; then a cluster has one tile.
// kGated: y = act(gate) * value of the product's halves.
template <int kRows, int kSplits, bool kGated>
__global__ void FOX_CLUSTER(kSplits)
    __launch_bounds__(kThreads<kRows>, (kBlocksOfAnSm<kRows, kSplits>))
        ClusterGemmKernel(const __grid_constant__ ClusterGemmArguments a) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ unsigned char memory[];
  __shared__ Mbarrier barriers[4][kMaxStages];
  __shared__ float scales[kRows];
  TriggerDependents();
  unsigned char* aligned = memory + (kAlignment - SharedAddress(memory) % kAlignment) % kAlignment;
  const Ring weights{aligned, kWeightBytes, a.weight_stages, barriers[0], barriers[1]};
  const Ring inputs{aligned + a.weight_stages * kWeightBytes, kRows * kLineBytes, a.x_stages,
                    barriers[2], barriers[3]};
  const BlockWork work = BlockWorkOf<kSplits>();
  const int warp = FromLane(Warp(), 0);
  if (threadIdx.x == 0) {
    PrefetchTensorMap(&a.weight_map);
    PrefetchTensorMap(&a.x_map);
    weights.Init(1, kConsumerWarps<kRows>);
    inputs.Init(1, kConsumerWarps<kRows>);
    PublishBarriers();
  }
  __syncthreads();
  if (warp == kConsumerWarps<kRows>) {
    if (Lane() == 0) CopyWeights(a, work, weights);
    __syncwarp();
    return;
  }
  WaitOnDependencies();
  if (warp == kConsumerWarps<kRows> + 1) {
    if (Lane() == 0) CopyInputs(a, work, inputs);
    __syncwarp();
    return;
  }
  FindScales(a, scales);
  Reader<kRows, kSplits> reader{weights, inputs, {}, {}};
  // Beside the rings, or over them.
  float* tile_sums =
      reinterpret_cast<float*>(kFirstInMemory<kRows, kSplits> ? inputs.At(a.x_stages) : aligned);
#pragma unroll 1
  for (int tile = work.tile; tile < a.tiles; tile += work.tile_step) {
    float sums[kClasses / kSplits][kSumsOfThread<kRows>];
    reader.Multiply(a.class_chunks, tile_sums, sums);
    const auto& c = sums[0];
    if constexpr (kSplits == 1) {
      static_assert(!kGated);
      SyncThreads<kConsumers<kRows>>();  // the scales are there
#pragma unroll
      for (int i = 0; i < kSumsOfThread<kRows>; ++i) {
        const SumPlace<kRows> place(i);
        if (place.n >= a.rows) continue;
        StoreOutput(a, place.n, tile * kTileOut + place.m, __fmul_rn(c[i], scales[place.n]));
      }
    } else {
      MergeAndStore<kRows, kSplits, kGated>(a, tile, tile_sums, scales, c);
    }
  }
#else
  __trap();  // compiled for something else: nothing may pass for its result
#endif
}

}  // namespace fox::cuda::cluster_gemm
