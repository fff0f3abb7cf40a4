// The kernel of ClusterGemm: a block's work of a product, its two rings of tiles, who copies and
// who multiplies, and how a cluster adds its sums. Read cluster_gemm.cu first.
#pragma once

#include <cuda.h>
#include <cuda_bf16.h>

#include <bit>
#include <cstdint>

#include "kernels/cuda/linear/gemm_arguments.cuh"
#include "kernels/cuda/primitives/warp.cuh"
#include "kernels/cuda/ptx/cluster.cuh"
#include "kernels/cuda/ptx/dependent_launch.cuh"
#include "kernels/cuda/ptx/fast_math.cuh"
#include "kernels/cuda/ptx/mbarrier.cuh"
#include "kernels/cuda/ptx/named_barrier.cuh"
#include "kernels/cuda/ptx/tma.cuh"
#include "kernels/cuda/ptx/wgmma_narrow.cuh"

namespace fox::cuda::cluster_gemm {

inline constexpr int kTileOut = 128;
inline constexpr int kHalfOut = 64;   // of a warpgroup
inline constexpr int kTileCols = 64;  // 128 bytes: a line of the swizzle
inline constexpr int kStep = 16;      // columns of one tensor core product
inline constexpr int kLineBytes = kTileCols * 2;
inline constexpr int kGroupBytes = 8 * kLineBytes;  // the swizzle's period
inline constexpr int kWeightBytes = kTileOut * kLineBytes;
inline constexpr int kConsumers = 256;
inline constexpr int kConsumerWarps = kConsumers / kWarp;
inline constexpr int kWeightWarp = kConsumerWarps, kInputWarp = kConsumerWarps + 1;  // they copy
inline constexpr int kThreads = kConsumers + 2 * kWarp;
inline constexpr int kMaxStages = 16;
inline constexpr int kMinStages = 3;
// Chunks of 64 columns whose indices are equal modulo this are a class, summed on its own.
inline constexpr int kClasses = 8;
inline constexpr int kMaxSplits = kClasses;  // the largest portable cluster
inline constexpr int kSumStride =
    kTileOut + 4;  // floats; spreads the fragments' rows over the banks
inline constexpr int kAlignment = kGroupBytes;  // of tiles; the launch does not promise it
inline constexpr int kMostBytes = 225 * 1024;   // of dynamic shared memory

struct ClusterGemmArguments : GemmArguments {
  CUtensorMap weight_map, x_map;
  int tiles;
  // Tile t has the rows of W from t * tile_rows on for one warpgroup, and those half_offset further
  // down for the other: neighbours, or the gate's and the value's of kGated.
  int tile_rows, half_offset;
  Activation act;    // kGated
  int class_chunks;  // of a class; those past the last column are zeros
  int weight_stages, x_stages;
  int under_way;
  bool vectors;  // y may be accessed by four elements
  // NormedRows of the input, null: every row's scale is one; [rows, input_sum_count].
  const float* input_sums;
  int input_sum_count;
  float eps;
  // NormedRows of y; `normed` null: none. output_sums: [rows, tiles].
  __nv_bfloat16* normed;
  int64_t normed_stride;
  float* output_sums;
  const float* norm_weight;
};

// A ring of tiles: its memory, and two barriers a stage, "has arrived" and "has been read".
struct TileRing {
  unsigned char* tiles;
  int tile_bytes;
  int stages;
  Mbarrier* full;
  Mbarrier* empty;

  __device__ __forceinline__ void Init() const {
#pragma unroll 1
    for (int s = 0; s < stages; ++s) {
      full[s].Init(1);
      empty[s].Init(kConsumerWarps);
    }
  }
};

// A place in a ring.
struct RingPlace {
  int stage = 0;
  uint32_t parity = 0;

  __device__ __forceinline__ void Advance(const TileRing& ring) {
    if (++stage == ring.stages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

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
// would only make everybody else's loads wait, those of the kernel before among them.
__device__ __forceinline__ void CopyWeights(const ClusterGemmArguments& a, const BlockWork& work,
                                            const TileRing& ring) {
  RingPlace at, arrived;
  int started = 0;
  work.ForEachChunk(a, [&](int tile, int chunk) {
    if (started++ >= a.under_way) {
      ring.full[arrived.stage].Wait(arrived.parity);
      arrived.Advance(ring);
    }
    ring.empty[at.stage].Wait(at.parity ^ 1);
    ring.full[at.stage].ArriveAndExpect(kWeightBytes);
    unsigned char* to = ring.tiles + at.stage * kWeightBytes;
    const int row = tile * a.tile_rows, col = chunk * kTileCols;
    TmaLoad2D(to, &a.weight_map, col, row, &ring.full[at.stage]);
    TmaLoad2D(to + kWeightBytes / 2, &a.weight_map, col, row + a.half_offset, &ring.full[at.stage]);
    at.Advance(ring);
  });
}

// One thread.
__device__ __forceinline__ void CopyInputs(const ClusterGemmArguments& a, const BlockWork& work,
                                           const TileRing& ring) {
  RingPlace at;
  work.ForEachChunk(a, [&](int, int chunk) {
    ring.empty[at.stage].Wait(at.parity ^ 1);
    ring.full[at.stage].ArriveAndExpect(static_cast<uint32_t>(ring.tile_bytes));
    TmaLoad2D(ring.tiles + at.stage * ring.tile_bytes, &a.x_map, chunk * kTileCols, 0,
              &ring.full[at.stage]);
    at.Advance(ring);
  });
}

// Once the first `done` classes are summed: adds what thereby is a tree's right half to its left
// one. sums[k] begins as class k's and waits as that of a subtree whose first class is k.
template <int kBlockClasses, int kCount>
__device__ __forceinline__ void AddHalves(int done, float (&sums)[kBlockClasses][kCount]) {
  WarpgroupFenceOperand(sums[done - 1]);
#pragma unroll
  for (int half = 1; half < kBlockClasses; half *= 2) {
    if (done % (2 * half) != 0) continue;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      sums[done - 2 * half][i] = __fadd_rn(sums[done - 2 * half][i], sums[done - half][i]);
    }
  }
}

// The multiplying warps' way through both rings.
struct Reader {
  TileRing weights, inputs;
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
  template <int kCount>
  __device__ __forceinline__ void Start(bool first, bool any_before, float (&c)[kCount]) {
    const int half = Warp() / (kConsumerWarps / 2);
    const uint64_t w = TileDescriptor(weights.tiles + weight_at.stage * kWeightBytes +
                                      half * kHalfOut * kLineBytes);
    const uint64_t x = TileDescriptor(inputs.tiles + input_at.stage * inputs.tile_bytes);
    weights.full[weight_at.stage].Wait(weight_at.parity);
    inputs.full[input_at.stage].Wait(input_at.parity);
    WgmmaFence();
#pragma unroll
    for (int step = 0; step < kTileCols / kStep; ++step) {
      const int at = step * kStep * 2 / 16;
      if (first && step == 0) {
        WgmmaNarrow<true>(c, w + at, x + at);
      } else {
        WgmmaNarrow<false>(c, w + at, x + at);
      }
    }
    WgmmaCommit();
    if (any_before) {
      WgmmaWait<1>();
      Release();
    }
    weight_before = weight_at.stage;
    input_before = input_at.stage;
    weight_at.Advance(weights);
    input_at.Advance(inputs);
  }

  // sums[0] = the warpgroup's sums over kBlockClasses classes of `chunks` tiles, which then have
  // been read. A class's products run before the sums of the one before are added to others.
  template <int kBlockClasses, int kCount>
  __device__ __forceinline__ void Multiply(int chunks, float (&sums)[kBlockClasses][kCount]) {
#pragma unroll
    for (int k = 0; k < kBlockClasses; ++k) {
      Start(true, k > 0, sums[k]);
      if (k > 0) AddHalves(k, sums);
#pragma unroll 1
      for (int i = 1; i < chunks; ++i) Start(false, true, sums[k]);
    }
    WgmmaWait<0>();
    AddHalves(kBlockClasses, sums);
    Release();
  }

 private:
  __device__ __forceinline__ static uint64_t TileDescriptor(const unsigned char* tile) {
    return MatrixDescriptor(SharedAddress(tile), 16, kGroupBytes, Swizzle::k128);
  }
};

// Where in the block's tile of sums fragment element i of this thread belongs: input row n, output
// m (wgmma.cuh).
struct SumPlace {
  int n, m;

  __device__ __forceinline__ explicit SumPlace(int i)
      : n(i / 4 * 8 + Lane() % 4 * 2 + i % 2), m(Warp() * 16 + Lane() / 4 + i / 2 % 2 * 8) {}
};

// What is stored: no other order, and nothing contracted, or bits would depend on the kernel.
__device__ __forceinline__ float Sum(float previous, float product, float bias) {
  return __fadd_rn(previous, __fadd_rn(product, bias));
}

__device__ __forceinline__ void StoreOutput(const ClusterGemmArguments& a, int n, int output,
                                            float value) {
  if (output >= a.out) return;
  const int64_t at = n * a.y_stride + output;
  value = Sum(a.accumulate ? a.y_f32[at] : 0, value, a.bias == nullptr ? 0 : a.bias[output]);
  if (a.y_bf16 != nullptr) {
    a.y_bf16[at] = __float2bfloat16_rn(value);
  } else {
    a.y_f32[at] = value;
  }
}

// Four neighbouring outputs of a row.
struct Four {
  float x[4] = {};

  Four() = default;
  __device__ __forceinline__ explicit Four(const float4& v) : x{v.x, v.y, v.z, v.w} {}
  __device__ __forceinline__ Four Times(float scale) const {
    return Four({__fmul_rn(x[0], scale), __fmul_rn(x[1], scale), __fmul_rn(x[2], scale),
                 __fmul_rn(x[3], scale)});
  }
};

// What is added to the sums: the bias, and what y holds before. Read while the cluster's blocks
// wait for each other.
struct Addends {
  Four previous, bias;

  __device__ __forceinline__ void Load(const ClusterGemmArguments& a, int n, int output) {
    if (n >= a.rows) return;
    const float* y = a.accumulate ? a.y_f32 + n * a.y_stride + output : nullptr;
    const bool vector = a.vectors && output + 4 <= a.out;
    if (y != nullptr && vector) previous = Four(*reinterpret_cast<const float4*>(y));
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (output + i >= a.out) continue;
      if (y != nullptr && !vector) previous.x[i] = y[i];
      if (a.bias != nullptr) bias.x[i] = a.bias[output + i];
    }
  }
};

// n < rows. Returns the row's values, zeros past its end.
__device__ __forceinline__ Four StoreFour(const ClusterGemmArguments& a, int n, int output,
                                          Four value, const Addends& addends) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    value.x[i] = Sum(addends.previous.x[i], value.x[i], addends.bias.x[i]);
  }
  const int64_t at = n * a.y_stride + output;
  const auto& x = value.x;
  if (a.vectors && output + 4 <= a.out) {
    if (a.y_bf16 != nullptr) {
      *reinterpret_cast<uint2*>(a.y_bf16 + at) = {PackBf16(x[0], x[1]), PackBf16(x[2], x[3])};
    } else {
      *reinterpret_cast<float4*>(a.y_f32 + at) = {x[0], x[1], x[2], x[3]};
    }
    return value;
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (output + i >= a.out) {
      value.x[i] = 0;
    } else if (a.y_bf16 != nullptr) {
      a.y_bf16[at + i] = __float2bfloat16_rn(x[i]);
    } else {
      a.y_f32[at + i] = x[i];
    }
  }
  return value;
}

// What is left of a row's tile for the next norm: by a warp, four values a lane. a.out % 4 == 0.
__device__ __forceinline__ void LeaveNormed(const ClusterGemmArguments& a, int n, int tile,
                                            const Four& value) {
  const int output = tile * kTileOut + Lane() * 4;
  float sum = 0;
#pragma unroll
  for (float x : value.x) sum = fmaf(x, x, sum);
  sum = StridedSum<1>(sum);
  if (Lane() == 0) a.output_sums[n * a.tiles + tile] = sum;
  if (output >= a.out) return;
  float4 weight = {1, 1, 1, 1};
  if (a.norm_weight != nullptr) {
    weight = *reinterpret_cast<const float4*>(a.norm_weight + output);
  }
  *reinterpret_cast<uint2*>(a.normed + n * a.normed_stride + output) = {
      PackBf16(value.x[0] * weight.x, value.x[1] * weight.y),
      PackBf16(value.x[2] * weight.z, value.x[3] * weight.w)};
}

// scales[n] = what the sums of input row n are multiplied by, n < rows.
__device__ __forceinline__ void FindScales(const ClusterGemmArguments& a, float* scales) {
  const int n = static_cast<int>(threadIdx.x);
  if (n >= a.rows) return;
  scales[n] = 1;
  if (a.input_sums == nullptr) return;
  float sum = 0;
#pragma unroll 4
  for (int i = 0; i < a.input_sum_count; ++i) {
    sum = __fadd_rn(sum, a.input_sums[n * a.input_sum_count + i]);
  }
  scales[n] = rsqrtf(__fadd_rn(__fdiv_rn(sum, static_cast<float>(a.in)), a.eps));
}

// The cluster's sums of four outputs of a row, `at` in every block's shared memory, as a binary
// tree.
template <int kSplits>
__device__ __forceinline__ Four SumOfBlocks(const float* at) {
  Four part[kSplits];
#pragma unroll
  for (int s = 0; s < kSplits; ++s) part[s] = Four(LoadFourFromBlock(at, s));
#pragma unroll
  for (int half = 1; half < kSplits; half *= 2) {
#pragma unroll
    for (int s = 0; s < kSplits; s += 2 * half) {
#pragma unroll
      for (int i = 0; i < 4; ++i) part[s].x[i] = __fadd_rn(part[s].x[i], part[s + half].x[i]);
    }
  }
  return part[0];
}

// act(gate) * value, of both as bf16 would hold them: the bits of a product that rounds its outputs
// and a transform behind it (input_transform.cuh).
__device__ __forceinline__ Four Gated(const Four& gate, const Four& value, Activation act) {
  Four out;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float g = __bfloat162float(__float2bfloat16_rn(gate.x[i]));
    const float sigmoid = Sigmoid(g);
    out.x[i] = __bfloat162float(__float2bfloat16_rn(value.x[i])) *
               (act == Activation::kSilu ? g * sigmoid : sigmoid);
  }
  return out;
}

// Adds the cluster's sums: every block lays its own out in `sums`, where its rings were, and takes
// every kSplits-th row of them all.
template <int kRows, int kSplits, bool kGated>
__device__ __forceinline__ void MergeAndStore(const ClusterGemmArguments& a, int tile, float* sums,
                                              const float* scales, const float (&c)[kRows / 2]) {
  constexpr int kRowUnits = (kGated ? kHalfOut : kTileOut) / 4;  // four outputs of a row
  constexpr int kUnits = kRows / kSplits * kRowUnits;
  constexpr int kPasses = (kUnits + kConsumers - 1) / kConsumers;
  SyncThreads<kConsumers>();  // all have read the rings
#pragma unroll
  for (int i = 0; i < kRows / 2; ++i) {
    const SumPlace place(i);
    sums[place.n * kSumStride + place.m] = c[i];
  }
  ArriveAtCluster();
  const int rank = static_cast<int>(blockIdx.x) % kSplits;
  const auto row = [rank](int unit) { return unit / kRowUnits * kSplits + rank; };
  const auto column = [](int unit) { return unit % kRowUnits * 4; };
  Addends addends[kPasses];
#pragma unroll
  for (int pass = 0; pass < kPasses; ++pass) {
    const int unit = static_cast<int>(threadIdx.x) + pass * kConsumers;
    if (kGated || unit >= kUnits) continue;
    addends[pass].Load(a, row(unit), tile * kTileOut + column(unit));
  }
  WaitForCluster();
#pragma unroll
  for (int pass = 0; pass < kPasses; ++pass) {
    const int unit = static_cast<int>(threadIdx.x) + pass * kConsumers;
    if (unit >= kUnits || row(unit) >= a.rows) continue;
    const float* at = sums + row(unit) * kSumStride + column(unit);
    const float scale = scales[row(unit)];
    Four total = SumOfBlocks<kSplits>(at).Times(scale);
    if constexpr (kGated) {
      total = Gated(total, SumOfBlocks<kSplits>(at + kHalfOut).Times(scale), a.act);
    }
    const int output = tile * (kGated ? kHalfOut : kTileOut) + column(unit);
    const Four value = StoreFour(a, row(unit), output, total, addends[pass]);
    if (!kGated && a.normed != nullptr) LeaveNormed(a, row(unit), tile, value);
  }
  // The others have read this block's sums: what they stored has needed them.
  ArriveAtClusterRelaxed();
  WaitForCluster();
}

// Two, where the registers for sums suffice: a block of another kernel may share the SM.
template <int kRows, int kSplits>
inline constexpr int kBlocksOfAnSm = kRows / 2 * std::bit_width(unsigned{kClasses / kSplits}) <= 48
                                         ? 2
                                         : 1;

// For at most kRows rows, W's columns split among kSplits blocks; then a cluster has one tile.
// kGated: y = act(gate) * value of the product's halves.
template <int kRows, int kSplits, bool kGated>
__global__ void FOX_CLUSTER(kSplits) __launch_bounds__(kThreads, (kBlocksOfAnSm<kRows, kSplits>))
    ClusterGemmKernel(const __grid_constant__ ClusterGemmArguments a) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ unsigned char memory[];
  __shared__ Mbarrier barriers[4][kMaxStages];
  __shared__ float scales[kRows];
  TriggerDependents();
  unsigned char* aligned = memory + (kAlignment - SharedAddress(memory) % kAlignment) % kAlignment;
  const TileRing weights{aligned, kWeightBytes, a.weight_stages, barriers[0], barriers[1]};
  const TileRing inputs{aligned + a.weight_stages * kWeightBytes, kRows * kLineBytes, a.x_stages,
                        barriers[2], barriers[3]};
  const BlockWork work = BlockWorkOf<kSplits>();
  const int warp = FromLane(Warp(), 0);
  if (threadIdx.x == 0) {
    PrefetchTensorMap(&a.weight_map);
    PrefetchTensorMap(&a.x_map);
    weights.Init();
    inputs.Init();
    PublishBarriers();
  }
  __syncthreads();
  if (warp == kWeightWarp) {
    if (Lane() == 0) CopyWeights(a, work, weights);
    __syncwarp();
    return;
  }
  WaitOnDependencies();
  if (warp == kInputWarp) {
    if (Lane() == 0) CopyInputs(a, work, inputs);
    __syncwarp();
    return;
  }
  FindScales(a, scales);
  Reader reader{weights, inputs, {}, {}};
#pragma unroll 1
  for (int tile = work.tile; tile < a.tiles; tile += work.tile_step) {
    float sums[kClasses / kSplits][kRows / 2];
    reader.Multiply(a.class_chunks, sums);
    const auto& c = sums[0];
    if constexpr (kSplits == 1) {
      static_assert(!kGated);
      SyncThreads<kConsumers>();  // the scales are there
#pragma unroll
      for (int i = 0; i < kRows / 2; ++i) {
        const SumPlace place(i);
        if (place.n >= a.rows) continue;
        StoreOutput(a, place.n, tile * kTileOut + place.m, __fmul_rn(c[i], scales[place.n]));
      }
    } else {
      MergeAndStore<kRows, kSplits, kGated>(a, tile, reinterpret_cast<float*>(aligned), scales, c);
    }
  }
#else
  __trap();  // compiled for something else: nothing may pass for its result
#endif
}

}  // namespace fox::cuda::cluster_gemm
