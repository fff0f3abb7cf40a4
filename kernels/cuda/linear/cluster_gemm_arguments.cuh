// What a launch of ClusterGemm's kernel is told, and the sizes that all of its parts share. Read
// cluster_gemm.cu first.
#pragma once

#include <cuda.h>
#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/cuda/linear/gemm_arguments.cuh"
#include "kernels/cuda/primitives/warp.cuh"

namespace fox::cuda::cluster_gemm {

inline constexpr int kTileOut = 128;
inline constexpr int kHalfOut = 64;   // of a warpgroup
inline constexpr int kTileCols = 64;  // 128 bytes: a line of the swizzle
inline constexpr int kStep = 16;      // columns of one tensor core product
inline constexpr int kLineBytes = kTileCols * 2;
inline constexpr int kGroupBytes = 8 * kLineBytes;  // the swizzle's period
inline constexpr int kWeightBytes = kTileOut * kLineBytes;
inline constexpr int kGroupRows = 64;  // of input, at most, in a warpgroup's registers
inline constexpr int kGroupWarps = 8;  // two warpgroups: all of a tile's outputs, for the same rows
inline constexpr int kMaxStages = 16;
inline constexpr int kMinStages = 3;
// Groups of input rows, each with warps of its own, which read the same tiles of W.
template <int kRows>
inline constexpr int kRowGroups = (kRows + kGroupRows - 1) / kGroupRows;
template <int kRows>
inline constexpr int kConsumerWarps = kGroupWarps* kRowGroups<kRows>;  // they multiply
template <int kRows>
inline constexpr int kConsumers = kWarp* kConsumerWarps<kRows>;
template <int kRows>
inline constexpr int kThreads = kConsumers<kRows> + 2 * kWarp;  // two warps copy
// Chunks of 64 columns whose indices are equal modulo this are a class, summed on its own.
inline constexpr int kClasses = 8;
inline constexpr int kMaxSplits = kClasses;  // the largest portable cluster
inline constexpr int kSumStride =
    kTileOut + 4;  // floats; spreads the fragments' rows over the banks
inline constexpr int kAlignment = kGroupBytes;  // of tiles; the launch does not promise it
inline constexpr int kMaxBytes = 225 * 1024;    // of dynamic shared memory

// A thread's sums of one class.
template <int kRows>
inline constexpr int kSumsOfThread = kRows* kTileOut / kConsumers<kRows>;
// Whether the sums of classes that have been added to the first one are kept in shared memory,
// where the cluster will look for them: with two groups of rows a thread has registers for two
// sets of sums only.
template <int kRows, int kSplits>
inline constexpr bool kFirstInMemory = (kRows > kGroupRows) && kClasses / kSplits > 2;

struct ClusterGemmArguments : GemmArguments {
  CUtensorMap weight_map, x_map;
  int tiles;
  // Tile t has the rows of W from t * tile_rows on for one warpgroup, and those half_offset further
  // down for the other: neighbours, or the gate's and the value's of kGated.
  int tile_rows, half_offset;
  int class_chunks;  // of a class; those past the last column are zeros
  int weight_stages, x_stages;
  int under_way;
  bool vectors;  // y may be accessed by four elements
  // Of the input's deferred norm, null: every row's scale is one.
  const float* input_sums;
  float eps;
  // The next norm of y, deferred; `normed` null: none. output_sums: [rows, tiles].
  __nv_bfloat16* normed;
  int64_t normed_stride;
  float* output_sums;
  const float* norm_weight;
};

}  // namespace fox::cuda::cluster_gemm
