// The epilogue of ClusterGemm's kernel, from a tile's sums to y: a cluster's blocks add their sums,
// then apply scale, bias, y's previous value, the gate, and the next norm, deferred. Read
// cluster_gemm.cu first.
#pragma once

#include <cuda.h>
#include <cuda_bf16.h>

#include <bit>
#include <cstdint>

#include "kernels/cuda/linear/device_weight.h"
#include "kernels/cuda/primitives/norm_and_gate.cuh"
#include "kernels/cuda/primitives/warp.cuh"
#include "kernels/cuda/ptx/cluster.cuh"
#include "kernels/cuda/ptx/named_barrier.cuh"

namespace fox::cuda::cluster_gemm {

inline constexpr int kTileOut = 128;
inline constexpr int kHalfOut = 64;   // of a warpgroup
inline constexpr int kTileCols = 64;  // 128 bytes: a line of the swizzle
inline constexpr int kLineBytes = kTileCols * 2;
inline constexpr int kGroupBytes = 8 * kLineBytes;  // the swizzle's period
inline constexpr int kGroupRows = 64;               // of input, at most, in a warpgroup's registers
inline constexpr int kGroupWarps = 8;  // two warpgroups: all of a tile's outputs, for the same rows
inline constexpr int kMaxStages = 16;
// Threads that multiply: each group of input rows has its own, which read the same tiles of W.
template <int kRows>
inline constexpr int kConsumerWarps = kGroupWarps*((kRows + kGroupRows - 1) / kGroupRows);
template <int kRows>
inline constexpr int kConsumers = kWarp* kConsumerWarps<kRows>;
template <int kRows>
inline constexpr int kThreads = kConsumers<kRows> + 2 * kWarp;  // two warps copy
// Chunks of 64 columns whose indices are equal modulo this are a class, summed on its own.
inline constexpr int kClasses = 8;
// Chunks side by side in a tile. In 8 bits two, of two classes, because lines of one chunk would be
// half as long, and memory is read at half of its rate by such lines.
template <bool kFp8>
inline constexpr int kTileChunks = kFp8 ? 2 : 1;
inline constexpr int kWeightBytes = kTileOut * kLineBytes;  // of a tile
template <bool kFp8>
inline constexpr int kMaxSplits = kClasses / kTileChunks<kFp8>;  // at most a portable cluster
inline constexpr int kSumStride = kTileOut + 4;  // floats; spreads fragments' rows over the banks
inline constexpr int kAlignment = kGroupBytes;   // of tiles; the launch does not promise it
inline constexpr int kMaxBytes = 225 * 1024;     // of dynamic shared memory

// A thread's sums of one class.
template <int kRows>
inline constexpr int kSumsOfThread = kRows* kTileOut / kConsumers<kRows>;
// True if the sums of classes that have been added to the first one are kept in shared memory,
// where the cluster will look for them: with two groups of rows a thread has registers for two sets
// of sums only.
template <int kRows, int kSplits>
inline constexpr bool kFirstInMemory = (kRows > kGroupRows) && kClasses / kSplits > 2;

// Classes that a block sums at the same time, a chunk of each in turn: all that it has, if there
// are registers for their sums. For their chunks are neighbours in W's rows, and memory is read
// faster in pieces of 256 bytes to a kilobyte than of 128.
template <int kRows, int kSplits, bool kFp8>
inline constexpr int kClassesTogether =
    kFp8 || kFirstInMemory<kRows, kSplits> || kSumsOfThread<kRows>* kClasses / kSplits > 128
        ? kTileChunks<kFp8>
        : kClasses / kSplits;

// Registers for sums: of the classes that are summed at the same time, and of one for each level of
// the tree above them.
template <int kRows, int kSplits, bool kFp8, int kTogether = kClassesTogether<kRows, kSplits, kFp8>>
inline constexpr int kSumRegisters =
    kSumsOfThread<kRows>*(kTogether + std::bit_width(unsigned{kClasses / kSplits / kTogether}) - 1);

// Blocks on an SM that the registers must allow: two, where they suffice for sums and widened
// codes, because a block of another kernel may share the SM.
template <int kRows, int kSplits, bool kFp8>
inline constexpr int kBlocksOfAnSm =
    kRows > kGroupRows || kSumRegisters<kRows, kSplits, kFp8> + (kFp8 ? 24 : 0) > 64 ? 1 : 2;

struct ClusterGemmArguments : GemmArguments {
  CUtensorMap weight_map, x_map;
  int tiles;
  // Tile t has the rows of W from t * tile_rows on for one warpgroup, and the rows half_offset
  // further down for the other: its neighbours or, if kGated, the value's rows beside the gate's.
  int tile_rows, half_offset;
  // Chunks of x's and W's columns, at least one of every class; columns past the last are zeros.
  int chunks;
  int stages;  // of both rings
  int under_way;
  // True if there are more blocks than SMs, two on each, so that one reads while the other merges.
  // Then they trigger late, because the next kernel's blocks would else take the last blocks'
  // places.
  bool paired;
  int early_tiles;  // of W, before that
  bool vectors;     // y may be accessed by four elements
  // Sums of squares of the input's deferred norm; null: every row's scale is one.
  const float* input_sums;
  float eps;
  // The next norm of y, deferred; `normed` null: none. output_sums: [rows, tiles].
  __nv_bfloat16* normed;
  int64_t normed_stride;
  float* output_sums;
  const float* norm_weight;
};

// Where in the block's tile of sums fragment element i of this thread belongs: input row n, output
// m (wgmma.cuh).
template <int kRows>
struct SumPlace {
  int n, m;

  __device__ __forceinline__ explicit SumPlace(int i)
      : n(i / 4 * 8 + Lane() % 4 * 2 + i % 2), m(Warp() * 16 + Lane() / 4 + i / 2 % 2 * 8) {
    if constexpr (kRows > kGroupRows) {
      n += Warp() / kGroupWarps * kGroupRows;
      m = m % kTileOut;
    }
  }

  // In a tile of sums in shared memory.
  __device__ __forceinline__ int Offset() const { return n * kSumStride + m; }
};

// The stored value. All kernels add in this order, with nothing contracted, so that bits do not
// depend on the kernel.
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
  // Elements p[0, count), then zeros.
  __device__ __forceinline__ Four(const float* p, int count) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (i < count) x[i] = p[i];
    }
  }
  __device__ __forceinline__ float4 Vector() const { return {x[0], x[1], x[2], x[3]}; }
  __device__ __forceinline__ Four Times(const Four& by) const {
    return Four({__fmul_rn(x[0], by.x[0]), __fmul_rn(x[1], by.x[1]), __fmul_rn(x[2], by.x[2]),
                 __fmul_rn(x[3], by.x[3])});
  }
  __device__ __forceinline__ Four Times(float scale) const {
    return Times(Four({scale, scale, scale, scale}));
  }
};

// The addends of four outputs' sums: the previous values in row n of y; below, the bias.
__device__ __forceinline__ Four PreviousOf(const ClusterGemmArguments& a, int n, int output) {
  if (!a.accumulate || n >= a.rows) return {};
  const float* y = a.y_f32 + n * a.y_stride + output;
  if (a.vectors && output + 4 <= a.out) return Four(*reinterpret_cast<const float4*>(y));
  return {y, a.out - output};
}

__device__ __forceinline__ Four BiasOf(const ClusterGemmArguments& a, int output) {
  if (a.bias == nullptr) return {};
  return {a.bias + output, a.out - output};
}

// Scales of four outputs' rows of W in 8 bits; the outputs' rows begin at row `first`.
template <bool kFp8>
__device__ __forceinline__ Four RowScalesOf(const ClusterGemmArguments& a, int first, int output) {
  if (!kFp8) return {};
  return {a.scales + first + output, a.out - output};
}

// n < rows. Returns the row's values, zeros past its end.
__device__ __forceinline__ Four StoreFour(const ClusterGemmArguments& a, int n, int output,
                                          Four value, const Four& previous, const Four& bias) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    value.x[i] = Sum(previous.x[i], value.x[i], bias.x[i]);
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

// Weights of the next norm for four outputs. REQUIRES: out % 4 == 0 if there is a next norm.
__device__ __forceinline__ Four NormWeightOf(const ClusterGemmArguments& a, int output) {
  if (a.normed == nullptr || output >= a.out) return {};
  return Four(*reinterpret_cast<const float4*>(a.norm_weight + output));
}

// scales[n] = factor of the sums of input row n, n < rows.
__device__ __forceinline__ void FindScales(const ClusterGemmArguments& a, float* scales) {
  const int n = static_cast<int>(threadIdx.x);
  if (n >= a.rows) return;
  scales[n] =
      a.input_sums == nullptr ? 1 : DeferredScale(a.input_sums + n * NormSums(a.in), a.in, a.eps);
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

__device__ __forceinline__ Four GatedRounded(const Four& value, const Four& gate, Activation act) {
  Four out;
#pragma unroll
  for (int i = 0; i < 4; ++i) out.x[i] = cuda::GatedRounded(value.x[i], gate.x[i], act);
  return out;
}

// The outputs of its cluster's tile that a thread stores: four neighbouring columns, the same ones
// in every kSplits-th row from its block's on. The struct has the addends and factors of their
// sums: bias, previous values of y, the next norm's weights and the scales of W's rows.
template <int kRows, int kSplits, bool kGated, bool kFp8>
struct ThreadOutputs {
  static constexpr int kTileOutputs = kGated ? kHalfOut : kTileOut;
  static constexpr int kRowUnits = kTileOutputs / 4;  // four outputs of a row
  static constexpr int kUnits = kRows / kSplits * kRowUnits;
  static constexpr int kStep = kConsumers<kRows>, kPasses = (kUnits + kStep - 1) / kStep;
  static_assert(kStep % kRowUnits == 0);  // a thread's outputs are the same in every pass
  // True if registers suffice to load them before the products: constants before the wait for the
  // previous kernel, what y held right behind it. Else they are loaded while the cluster's blocks
  // wait for each other, and may arrive after these blocks' sums.
  static constexpr bool kEarly = kSumRegisters<kRows, kSplits, kFp8> + (kFp8 ? 24 : 0) <= 40;

  Four bias, weight, row_scales, value_scales, previous[kPasses];

  __device__ __forceinline__ static int Column() {
    return static_cast<int>(threadIdx.x) % kRowUnits * 4;
  }
  __device__ __forceinline__ static int Row(int unit) {
    return unit / kRowUnits * kSplits + static_cast<int>(blockIdx.x) % kSplits;
  }

  __device__ __forceinline__ void LoadConstants(const ClusterGemmArguments& a, int tile) {
    const int output = tile * kTileOutputs + Column();
    if constexpr (!kGated) {
      bias = BiasOf(a, output);
      weight = NormWeightOf(a, output);
    }
    row_scales = RowScalesOf<kFp8>(a, 0, output);
    value_scales = RowScalesOf<(kFp8 && kGated)>(a, a.out, output);
  }
  // REQUIRES: the previous kernel has ended.
  __device__ __forceinline__ void LoadPrevious(const ClusterGemmArguments& a, int tile) {
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      const int unit = static_cast<int>(threadIdx.x) + pass * kStep;
      if (kGated || unit >= kUnits) continue;
      previous[pass] = PreviousOf(a, Row(unit), tile * kTileOutputs + Column());
    }
  }
};

// Adds the cluster's sums: every block puts its own into `sums`, where its rings were (with
// kFirstInMemory they lie in a place of their own already), and takes every kSplits-th row of them
// all.
template <int kRows, int kSplits, bool kGated, bool kFp8>
__device__ __forceinline__ void MergeAndStore(const ClusterGemmArguments& a, int tile, float* sums,
                                              const float* scales,
                                              const float (&c)[kSumsOfThread<kRows>],
                                              ThreadOutputs<kRows, kSplits, kGated, kFp8>& mine) {
  using Outputs = ThreadOutputs<kRows, kSplits, kGated, kFp8>;
  if constexpr (!kFirstInMemory<kRows, kSplits>) {
    SyncThreads<kConsumers<kRows>>();  // all have read the rings
#pragma unroll
    for (int i = 0; i < kSumsOfThread<kRows>; ++i) sums[SumPlace<kRows>(i).Offset()] = c[i];
  }
  ArriveReleasingShared();
  if (!Outputs::kEarly) {
    mine.LoadConstants(a, tile);
    mine.LoadPrevious(a, tile);
  }
  const int column = Outputs::Column(), output = tile * Outputs::kTileOutputs + column;
  WaitForCluster();
  const int thread = OpaqueThreadIdx();  // no addresses are kept from the loads above
#pragma unroll
  for (int pass = 0; pass < Outputs::kPasses; ++pass) {
    const int unit = thread + pass * Outputs::kStep, row = Outputs::Row(unit);
    if (unit >= Outputs::kUnits || row >= a.rows) continue;
    const float* at = sums + row * kSumStride + column;
    const float scale = scales[row];
    const auto scaled = [scale](const Four& sum, const Four& of_rows) {
      return (kFp8 ? sum.Times(of_rows) : sum).Times(scale);
    };
    Four total = scaled(SumOfBlocks<kSplits>(at), mine.row_scales);
    if constexpr (kGated) {
      const Four value = scaled(SumOfBlocks<kSplits>(at + kHalfOut), mine.value_scales);
      total = GatedRounded(value, total, a.act);
    }
    const Four value = StoreFour(a, row, output, total, mine.previous[pass], mine.bias);
    if (kGated || a.normed == nullptr) continue;  // a warp has a row's tile
    DeferColumns(value.Vector(), mine.weight.Vector(), output < a.out,
                 a.normed + row * a.normed_stride + output, a.output_sums + row * a.tiles + tile);
  }
  // Waits until the other blocks have read this block's sums, which their stored outputs needed.
  ArriveAtClusterRelaxed();
  WaitForCluster();
}

}  // namespace fox::cuda::cluster_gemm
