// The kernel of ClusterGemm: a block's work of a product, its two rings of tiles, who copies and
// who multiplies, and how a cluster adds its sums. Read cluster_gemm.cu first.
#pragma once

#include <cuda.h>
#include <cuda_bf16.h>

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
inline constexpr int kMaxSplits = 8;  // the largest portable cluster
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
  Activation act;  // kGated
  int chunks;      // of columns
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
// columns of the chunks [first_chunk, last_chunk).
struct BlockWork {
  int tile, tile_step;
  int first_chunk, last_chunk;
};

template <int kSplits>
__device__ __forceinline__ BlockWork BlockWorkOf(const ClusterGemmArguments& a) {
  const int block = static_cast<int>(blockIdx.x), rank = block % kSplits;
  return {block / kSplits, static_cast<int>(gridDim.x) / kSplits, a.chunks * rank / kSplits,
          a.chunks * (rank + 1) / kSplits};
}

// One thread. At most `under_way` tiles are on their way: enough to keep the memory busy; more
// would only make everybody else's loads wait, those of the kernel before among them.
__device__ __forceinline__ void CopyWeights(const ClusterGemmArguments& a, const BlockWork& work,
                                            const TileRing& ring) {
  RingPlace at, arrived;
  int started = 0;
#pragma unroll 1
  for (int tile = work.tile; tile < a.tiles; tile += work.tile_step) {
#pragma unroll 1
    for (int chunk = work.first_chunk; chunk < work.last_chunk; ++chunk, ++started) {
      if (started >= a.under_way) {
        ring.full[arrived.stage].Wait(arrived.parity);
        arrived.Advance(ring);
      }
      ring.empty[at.stage].Wait(at.parity ^ 1);
      ring.full[at.stage].ArriveAndExpect(kWeightBytes);
      unsigned char* to = ring.tiles + at.stage * kWeightBytes;
      const int row = tile * a.tile_rows, col = chunk * kTileCols;
      TmaLoad2D(to, &a.weight_map, col, row, &ring.full[at.stage]);
      TmaLoad2D(to + kWeightBytes / 2, &a.weight_map, col, row + a.half_offset,
                &ring.full[at.stage]);
      at.Advance(ring);
    }
  }
}

// One thread.
__device__ __forceinline__ void CopyInputs(const ClusterGemmArguments& a, const BlockWork& work,
                                           const TileRing& ring) {
  RingPlace at;
#pragma unroll 1
  for (int tile = work.tile; tile < a.tiles; tile += work.tile_step) {
#pragma unroll 1
    for (int chunk = work.first_chunk; chunk < work.last_chunk; ++chunk) {
      ring.empty[at.stage].Wait(at.parity ^ 1);
      ring.full[at.stage].ArriveAndExpect(static_cast<uint32_t>(ring.tile_bytes));
      TmaLoad2D(ring.tiles + at.stage * ring.tile_bytes, &a.x_map, chunk * kTileCols, 0,
                &ring.full[at.stage]);
      at.Advance(ring);
    }
  }
}

// The multiplying warps' way through both rings.
struct Reader {
  TileRing weights, inputs;
  RingPlace weight_at, input_at;

  __device__ __forceinline__ void Release(int weight_stage, int input_stage) const {
    if (Lane() != 0) return;
    weights.empty[weight_stage].Arrive();
    inputs.empty[input_stage].Arrive();
  }

  // c = the warpgroup's sums over `chunks` tiles, which then have been read.
  template <int kCount>
  __device__ __forceinline__ void Multiply(int chunks, float (&c)[kCount]) {
    const int half = Warp() / (kConsumerWarps / 2);
    int weight_before = 0, input_before = 0;
#pragma unroll
    for (float& sum : c) sum = 0;
    WarpgroupFenceOperand(c);
#pragma unroll 1
    for (int i = 0; i < chunks; ++i) {
      const uint64_t w = TileDescriptor(weights.tiles + weight_at.stage * kWeightBytes +
                                        half * kHalfOut * kLineBytes);
      const uint64_t x = TileDescriptor(inputs.tiles + input_at.stage * inputs.tile_bytes);
      weights.full[weight_at.stage].Wait(weight_at.parity);
      inputs.full[input_at.stage].Wait(input_at.parity);
      WgmmaFence();
#pragma unroll
      for (int step = 0; step < kTileCols / kStep; ++step) {
        WgmmaAdd(c, w + step * kStep * 2 / 16, x + step * kStep * 2 / 16);
      }
      WgmmaCommit();
      if (i > 0) {
        WgmmaWait<1>();
        Release(weight_before, input_before);
      }
      weight_before = weight_at.stage;
      input_before = input_at.stage;
      weight_at.Advance(weights);
      input_at.Advance(inputs);
    }
    WgmmaWait<0>();
    WarpgroupFenceOperand(c);
    if (chunks > 0) Release(weight_before, input_before);
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

__device__ __forceinline__ void StoreOutput(const ClusterGemmArguments& a, int n, int output,
                                            float value) {
  if (output >= a.out) return;
  const int64_t at = n * a.y_stride + output;
  if (a.bias != nullptr) value += a.bias[output];
  if (a.y_bf16 != nullptr) {
    a.y_bf16[at] = __float2bfloat16_rn(value);
  } else {
    a.y_f32[at] = a.accumulate ? a.y_f32[at] + value : value;
  }
}

// Four neighbouring outputs of a row.
struct Four {
  float x[4] = {};

  Four() = default;
  __device__ __forceinline__ explicit Four(const float4& v) : x{v.x, v.y, v.z, v.w} {}
  __device__ __forceinline__ Four Times(float scale) const {
    return Four({x[0] * scale, x[1] * scale, x[2] * scale, x[3] * scale});
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
  for (int i = 0; i < 4; ++i) value.x[i] = addends.previous.x[i] + (value.x[i] + addends.bias.x[i]);
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
  sum = WarpSum(sum);
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
  for (int i = 0; i < a.input_sum_count; ++i) sum += a.input_sums[n * a.input_sum_count + i];
  scales[n] = rsqrtf(sum / static_cast<float>(a.in) + a.eps);
}

// The cluster's sums of four outputs of a row, `at` in every block's shared memory, in the blocks'
// order.
template <int kSplits>
__device__ __forceinline__ Four SumOfBlocks(const float* at) {
  float4 part[kSplits];
#pragma unroll
  for (int s = 0; s < kSplits; ++s) part[s] = LoadFourFromBlock(at, s);
  Four total(part[0]);
#pragma unroll
  for (int s = 1; s < kSplits; ++s) {
    const Four next(part[s]);
#pragma unroll
    for (int i = 0; i < 4; ++i) total.x[i] += next.x[i];
  }
  return total;
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

// For at most kRows rows, W's columns split among kSplits blocks; then a cluster has one tile.
// kGated: y = act(gate) * value of the product's halves.
template <int kRows, int kSplits, bool kGated>
__global__ void FOX_CLUSTER(kSplits) __launch_bounds__(kThreads, 2)
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
  const BlockWork work = BlockWorkOf<kSplits>(a);
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
    float c[kRows / 2];
    reader.Multiply(work.last_chunk - work.first_chunk, c);
    if constexpr (kSplits == 1) {
      static_assert(!kGated);
      SyncThreads<kConsumers>();  // the scales are there
#pragma unroll
      for (int i = 0; i < kRows / 2; ++i) {
        const SumPlace place(i);
        if (place.n >= a.rows) continue;
        StoreOutput(a, place.n, tile * kTileOut + place.m, c[i] * scales[place.n]);
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
