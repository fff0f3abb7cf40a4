// A block computes 64 outputs of all rows over a range of the columns of W: 64 x 64 tiles of W and
// the same columns of x go through a ring of stages by 16-byte asynchronous copies; W's first tiles
// are on their way before the previous kernel has ended. Warp w takes 32 outputs (w % 2) and 16 of
// the stage's 64 columns (w / 2). Where outputs are too few for all SMs the columns are
// split among blocks; the last of them to finish adds their sums up in order.
#include <cuda_bf16.h>

#include <algorithm>
#include <cstdint>

#include "kernels/core/check.h"
#include "kernels/cuda/linear/gemm_arguments.cuh"
#include "kernels/cuda/linear/skinny_gemm.h"
#include "kernels/cuda/primitives/warp.cuh"
#include "kernels/cuda/ptx/copy_async.cuh"
#include "kernels/cuda/ptx/dependent_launch.cuh"
#include "kernels/cuda/ptx/mma_sm80.cuh"
#include "kernels/cuda/ptx/shared_memory.cuh"
#include "kernels/cuda/runtime/launch.h"

namespace fox::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kTileOut = 64;
constexpr int kTileCols = 64;
constexpr int kStep = 16;  // columns of one tensor core product
constexpr int kWarpOut = 32;
constexpr int kColumnWarps = kTileCols / kStep;
constexpr int kRowBytes = kTileCols * 2;  // a stage's rows, swizzled
constexpr int kPieces = kRowBytes / 16;
constexpr int kRowsPerPass = kThreads / kPieces;
constexpr int kSumStride = kTileOut + 4;  // floats; spreads the fragments' rows over the banks
constexpr int kMinSplitStages = 4;        // fewer are not worth a block

// Ring of stages for a batch padded to N rows: near 96 KiB, so that two blocks (of this product and
// the next kernel's) share an SM.
template <int N>
struct Ring {
  static constexpr int kStageBytes = (kTileOut + N) * kRowBytes;
  static constexpr int kStages = 96 * 1024 / kStageBytes;
  static constexpr int kBytes = kStages * kStageBytes;
  static_assert(kStages >= 4 && kColumnWarps * N * kSumStride * 4 <= kBytes);
};

struct SkinnyArguments : GemmArguments {
  const __nv_bfloat16* x;
  int64_t x_stride;
  float* partial;            // [tile][split][row of N][64]
  int32_t* arrival_counter;  // [tile]
};

// Byte offset in a stage of 16 bytes of a row; ldmatrix finds any eight rows in different banks.
__device__ __forceinline__ uint32_t Swizzled(int row, int piece) {
  return static_cast<uint32_t>(row * kRowBytes + ((piece ^ (row & 7)) * 16));
}

// This thread's part of copying columns of `kRows` rows: one 16-byte piece of every 32nd row. Rows
// past the matrix's end repeat its last one; columns past `in` are not read, nor multiplied later.
template <int kRows>
struct RowCopier {
  static constexpr int kPasses = (kRows + kRowsPerPass - 1) / kRowsPerPass;
  const __nv_bfloat16* from[kPasses];

  __device__ __forceinline__ RowCopier(const __nv_bfloat16* matrix, int64_t stride, int first,
                                       int rows) {
#pragma unroll
    for (int p = 0; p < kPasses; ++p) {
      from[p] = matrix + static_cast<int64_t>(min(first + Row(p), rows - 1)) * stride + Column();
    }
  }
  __device__ __forceinline__ static int Row(int pass) {
    return static_cast<int>(threadIdx.x) / kPieces + pass * kRowsPerPass;
  }
  __device__ __forceinline__ static int Column() {
    return static_cast<int>(threadIdx.x) % kPieces * 8;
  }
  __device__ __forceinline__ void Copy(int col, int cols, uint32_t to) const {
    if (col + Column() >= cols) return;
#pragma unroll
    for (int p = 0; p < kPasses; ++p) {
      if (kRows % kRowsPerPass == 0 || Row(p) < kRows) {
        CopyAsync16(to + Swizzled(Row(p), Column() / 8), from[p] + col);
      }
    }
  }
};

// C[32 outputs, N rows] += one step of 16 columns.
template <int N>
__device__ __forceinline__ void MultiplyStage(uint32_t stage, int lane, int warp,
                                              float (&c)[2][N / 8][4]) {
  const int step = warp / 2;
  uint32_t w[2][4];
#pragma unroll
  for (int t = 0; t < 2; ++t) {
    const int row = warp % 2 * kWarpOut + t * 16 + lane % 16;
    LoadMatrices(w[t], stage + Swizzled(row, step * 2 + lane / 16));
  }
  const uint32_t inputs = stage + kTileOut * kRowBytes;
  if constexpr (N == 8) {
    uint32_t x[2];
    LoadMatrices(x, inputs + Swizzled(lane % 8, step * 2 + lane / 8 % 2));
#pragma unroll
    for (int t = 0; t < 2; ++t) MultiplyAdd(c[t][0], w[t], x[0], x[1]);
  } else {
#pragma unroll
    for (int p = 0; p < N / 16; ++p) {
      uint32_t x[4];
      const int row = p * 16 + lane / 16 * 8 + lane % 8;
      LoadMatrices(x, inputs + Swizzled(row, step * 2 + lane / 8 % 2));
#pragma unroll
      for (int t = 0; t < 2; ++t) {
        MultiplyAdd(c[t][2 * p], w[t], x[0], x[1]);
        MultiplyAdd(c[t][2 * p + 1], w[t], x[2], x[3]);
      }
    }
  }
}

// Runs the ring over stages [first, last) of 64 columns.
template <int N>
__device__ __forceinline__ void MultiplyTile(const SkinnyArguments& a, uint32_t ring, int first_out,
                                             int first, int last, float (&c)[2][N / 8][4]) {
  constexpr int kAhead = Ring<N>::kStages - 1;
  const int lane = Lane(), warp = Warp();
  const RowCopier<kTileOut> weights(a.weight, a.in, first_out, a.out);
  const RowCopier<N> inputs(a.x, a.x_stride, 0, a.rows);
  const auto copy_weights = [&](int n, int stage) {
    if (n < last) weights.Copy(n * kTileCols, a.in, ring + stage * Ring<N>::kStageBytes);
  };
  const auto copy_inputs = [&](int n, int stage) {
    if (n >= last) return;
    inputs.Copy(n * kTileCols, a.in, ring + stage * Ring<N>::kStageBytes + kTileOut * kRowBytes);
  };

  for (int i = 0; i < kAhead; ++i) copy_weights(first + i, i);
  CommitCopies();
  WaitOnDependencies();
  for (int i = 0; i < kAhead; ++i) {
    copy_inputs(first + i, i);
    CommitCopies();
  }
  int stage = 0, refilled = kAhead;  // the stage that was multiplied last is filled again
  for (int n = first; n < last; ++n) {
    WaitCopies<kAhead - 1>();  // stage n's groups and older ones have arrived, of this thread
    __syncthreads();           // of all threads; and all are done with the stage before
    copy_weights(n + kAhead, refilled);
    copy_inputs(n + kAhead, refilled);
    CommitCopies();
    if (n * kTileCols + warp / 2 * kStep < a.in) {
      MultiplyStage<N>(ring + stage * Ring<N>::kStageBytes, lane, warp, c);
    }
    refilled = stage;
    if (++stage == Ring<N>::kStages) stage = 0;
  }
  WaitCopies<0>();
  __syncthreads();
}

// Adds the four column warps' sums in order: sums [4][N][64] in shared memory, where the ring was.
template <int N>
__device__ __forceinline__ void SpillSums(float* sums, const float (&c)[2][N / 8][4]) {
  const int lane = Lane(), warp = Warp();
  float* mine = sums + warp / 2 * N * kSumStride + warp % 2 * kWarpOut;
#pragma unroll
  for (int t = 0; t < 2; ++t) {
#pragma unroll
    for (int j = 0; j < N / 8; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int n = j * 8 + lane % 4 * 2 + i % 2, m = t * 16 + lane / 4 + i / 2 * 8;
        mine[n * kSumStride + m] = c[t][j][i];
      }
    }
  }
  __syncthreads();
}

template <int N>
__device__ __forceinline__ float SumOf(const float* sums, int n, int m) {
  float sum = 0;
#pragma unroll
  for (int w = 0; w < kColumnWarps; ++w) sum += sums[(w * N + n) * kSumStride + m];
  return sum;
}

__device__ __forceinline__ void StoreOutput(const SkinnyArguments& a, int n, int output,
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

// Leaves the block's sums for the last block of the tile; true in that one.
template <int N>
__device__ __forceinline__ bool LeavePartial(const SkinnyArguments& a, const float* sums) {
  __shared__ bool is_last;
  const int splits = static_cast<int>(gridDim.y);
  float* mine = a.partial + (blockIdx.x * splits + blockIdx.y) * N * kTileOut;
  for (int e = static_cast<int>(threadIdx.x); e < a.rows * kTileOut; e += kThreads) {
    mine[e] = SumOf<N>(sums, e / kTileOut, e % kTileOut);
  }
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    is_last = atomicAdd(&a.arrival_counter[blockIdx.x], 1) == splits - 1;
    if (is_last)
      a.arrival_counter[blockIdx.x] = 0;  // for the next launch, which waits for this one's end
    __threadfence();
  }
  __syncthreads();
  return is_last;
}

template <int N>
__global__ void __launch_bounds__(kThreads, 2)
    SkinnyKernel(const __grid_constant__ SkinnyArguments a) {
  extern __shared__ __align__(128) unsigned char shared[];
  TriggerDependents();
  const int first_out = static_cast<int>(blockIdx.x) * kTileOut;
  const int stages = (a.in + kTileCols - 1) / kTileCols;
  const int splits = static_cast<int>(gridDim.y), split = static_cast<int>(blockIdx.y);
  float c[2][N / 8][4] = {};
  MultiplyTile<N>(a, SharedAddress(shared), first_out, stages * split / splits,
                  stages * (split + 1) / splits, c);
  float* sums = reinterpret_cast<float*>(shared);
  SpillSums<N>(sums, c);
  const int count = a.rows * kTileOut;
  if (splits == 1) {
    for (int e = static_cast<int>(threadIdx.x); e < count; e += kThreads) {
      const int n = e / kTileOut, m = e % kTileOut;
      StoreOutput(a, n, first_out + m, SumOf<N>(sums, n, m));
    }
    return;
  }
  if (!LeavePartial<N>(a, sums)) return;
  const float* partial = a.partial + blockIdx.x * splits * N * kTileOut;
  for (int e = static_cast<int>(threadIdx.x); e < count; e += kThreads) {
    float sum = 0;
    for (int s = 0; s < splits; ++s) sum += __ldcg(partial + s * N * kTileOut + e);
    StoreOutput(a, e / kTileOut, first_out + e % kTileOut, sum);
  }
}

// Blocks over the columns: as many as keep all SMs busy. A function of the weight's
// shape, so that the order of sums is too.
int SplitsOf(const SkinnyArguments& a, int tiles, int multiprocessors) {
  const int stages = (a.in + kTileCols - 1) / kTileCols;
  return std::max(1, std::min(multiprocessors / tiles, stages / kMinSplitStages));
}

template <int N>
cudaError_t LaunchSkinny(const SkinnyArguments& a, int multiprocessors, cudaStream_t stream) {
  const cudaError_t ready = AllowDynamicSmem<Ring<N>::kBytes>(KernelAddress(SkinnyKernel<N>));
  if (ready != cudaSuccess) return ready;
  const int tiles = (a.out + kTileOut - 1) / kTileOut;
  const dim3 grid(static_cast<unsigned>(tiles),
                  static_cast<unsigned>(SplitsOf(a, tiles, multiprocessors)));
  return Launch(SkinnyKernel<N>, grid, dim3(kThreads), Ring<N>::kBytes, stream, a);
}

}  // namespace

cudaError_t SkinnyGemm(const MatrixView& x, const LinearParams& params,
                       const SkinnyWorkspace& workspace, cudaStream_t stream) {
  const int64_t columns = params.weight.in();
  FOX_CHECK(x.dtype == DType::kBF16 && x.rows > 0 && x.rows <= kMaxSkinnyRows);
  FOX_CHECK(columns % kStep == 0 && columns == x.cols);
  FOX_CHECK(columns <= INT32_MAX / kMaxSkinnyRows);
  SkinnyArguments a{};
  static_cast<GemmArguments&>(a) = MakeGemmArguments(params);
  a.x = static_cast<const __nv_bfloat16*>(x.data);
  a.x_stride = x.row_stride;
  a.partial = workspace.partial;
  a.arrival_counter = workspace.arrival_counter;
  const int multiprocessors = workspace.multiprocessors;
  if (a.rows <= 8) return LaunchSkinny<8>(a, multiprocessors, stream);
  return LaunchSkinny<16>(a, multiprocessors, stream);
}

}  // namespace fox::cuda
