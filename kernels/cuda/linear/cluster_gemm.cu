// W is the operand of 64 rows of wgmma, the input rows are the one of N = 8, 16, 32 or 64 columns
// (those past the last are zeros). A block computes 128 outputs, 64 in each of two warpgroups; for
// more than 64 rows two more warpgroups share its tiles of W. The columns of W are split among a
// cluster's blocks, whose sums are read from each other's shared memory. Two further warps copy by
// TMA, each into its ring of tiles of 64 columns: W from before the previous kernel has ended, x
// behind it. More than 128 rows are passes of 128.
//
// Bits (cluster_gemm.md): the chunks of 64 columns are eight classes by their index modulo 8; a
// class is summed from left to right, 16 columns at a time, and the classes' sums are added as a
// binary tree, (0 1) (2 3) (4 5) (6 7) first. A block has whole classes, neighbours in the tree, so
// no number of blocks changes it, nor does N (wgmma.cuh), and no sum sees other rows.
#include <algorithm>
#include <cstdint>

#include "kernels/core/check.h"
#include "kernels/cuda/linear/cluster_gemm.cuh"
#include "kernels/cuda/linear/cluster_gemm.h"
#include "kernels/cuda/runtime/launch.h"
#include "kernels/cuda/runtime/tensor_map.h"

namespace fox::cuda {
namespace {

using namespace cluster_gemm;

// Both rings of a block. Measured faster than room for the next product's block on the same SM.
constexpr int kRingBytes = 210 * 1024;
// Tiles of W that a block has on their way, 16 KiB each.
constexpr int kTilesUnderWay = 4;
constexpr int kPassRows = 128;

int CeilDiv(int a, int b) { return (a + b - 1) / b; }

// Blocks over the columns: as many as keep most SMs busy, a power of two from `least` on.
int SplitsOf(const ClusterGemmArguments& a, int least, int multiprocessors) {
  int splits = least;
  while (2 * splits <= kMaxSplits && 2 * splits * a.tiles <= multiprocessors) splits *= 2;
  return splits;
}

// Divides a block's shared memory between the two rings; the bytes that they and the sums need.
template <int kRows, int kSplits>
int ChooseStages(ClusterGemmArguments* a) {
  constexpr int kInputBytes = kRows * kLineBytes;
  // A cluster has one tile.
  const int wanted =
      kSplits == 1 ? kMaxStages : std::min(a->class_chunks * kClasses / kSplits, kMaxStages);
  const int least = std::min(kMinStages, wanted);
  const int sums = kSplits == 1 ? 0 : kRows * kSumStride * static_cast<int>(sizeof(float));
  constexpr bool kBeside = kFirstInMemory<kRows, kSplits>;  // the sums, else over the rings
  const int room = kBeside ? kMaxBytes - kAlignment - sums : kRingBytes;
  const int input_room = room / (kInputBytes < kWeightBytes ? 4 : 2);
  a->x_stages = std::clamp(input_room / kInputBytes, least, wanted);
  a->weight_stages = std::clamp((room - a->x_stages * kInputBytes) / kWeightBytes, least, wanted);
  a->under_way = std::min(kTilesUnderWay, a->weight_stages);
  const int rings = a->weight_stages * kWeightBytes + a->x_stages * kInputBytes;
  return (kBeside ? rings + sums : std::max(rings, sums)) + kAlignment;
}

template <int kRows, int kSplits, bool kGated>
cudaError_t LaunchClusterGemm(ClusterGemmArguments& a, int multiprocessors, cudaStream_t stream) {
  const auto kernel = ClusterGemmKernel<kRows, kSplits, kGated>;
  const cudaError_t ready = AllowDynamicSmem<kMaxBytes, kHopperSmem>(KernelAddress(kernel));
  if (ready != cudaSuccess) return ready;
  const int bytes = ChooseStages<kRows, kSplits>(&a);
  const int blocks = kSplits == 1 ? std::min(a.tiles, multiprocessors) : a.tiles * kSplits;
  return Launch(kernel, dim3(static_cast<unsigned>(blocks)), dim3(kThreads<kRows>),
                SmemConfig(static_cast<size_t>(bytes), true), stream, a);
}

template <int kRows, bool kGated>
cudaError_t LaunchFor(ClusterGemmArguments& a, int multiprocessors, const MatrixView& x,
                      cudaStream_t stream) {
  const cudaError_t encoded =
      EncodeMatrixMap(x.data, x.rows, x.cols, x.row_stride, kRows, kTileCols, &a.x_map);
  if (encoded != cudaSuccess) return encoded;
  // Halves meet, and rows are normed, in shared memory, where a block alone does not lay its sums;
  // nor has it registers for all classes of two groups of rows.
  constexpr bool kNeverAlone = kGated || kRows > kGroupRows;
  switch (SplitsOf(a, kNeverAlone || a.normed != nullptr ? 2 : 1, multiprocessors)) {
    case 1:
      if constexpr (!kNeverAlone) {
        return LaunchClusterGemm<kRows, 1, kGated>(a, multiprocessors, stream);
      }
      return cudaErrorInvalidValue;
    case 2:
      return LaunchClusterGemm<kRows, 2, kGated>(a, multiprocessors, stream);
    case 4:
      return LaunchClusterGemm<kRows, 4, kGated>(a, multiprocessors, stream);
    default:
      return LaunchClusterGemm<kRows, 8, kGated>(a, multiprocessors, stream);
  }
}

template <bool kGated>
auto LauncherOf(int64_t rows) {
  return rows <= 8    ? LaunchFor<8, kGated>
         : rows <= 16 ? LaunchFor<16, kGated>
         : rows <= 32 ? LaunchFor<32, kGated>
         : rows <= 64 ? LaunchFor<64, kGated>
                      : LaunchFor<kPassRows, kGated>;
}

// Whether rows of y may be accessed by four elements.
bool HasVectors(const MatrixView& y) {
  const size_t bytes = 4 * SizeOf(y.dtype);
  return reinterpret_cast<uintptr_t>(y.data) % bytes == 0 && y.row_stride % 4 == 0;
}

void SetNextNorm(const RmsNorm& norm, const DeferredNorm& next, ClusterGemmArguments* a) {
  static_assert(DeferredNorm::kSumCols == kTileOut);
  const MatrixView& rows = next.rows;
  FOX_CHECK(a->accumulate && a->out % 4 == 0 && rows.cols == a->out && HasVectors(rows));
  FOX_CHECK(rows.dtype == DType::kBF16);
  a->normed = static_cast<__nv_bfloat16*>(rows.data);
  a->normed_stride = rows.row_stride;
  a->output_sums = next.sums;
  a->norm_weight = static_cast<const float*>(norm.weight);
}

// To the rows behind a pass. x_map is made for each.
void MoveOn(ClusterGemmArguments* a) {
  if (a->y_f32 != nullptr) a->y_f32 += a->rows * a->y_stride;
  if (a->y_bf16 != nullptr) a->y_bf16 += a->rows * a->y_stride;
  if (a->input_sums != nullptr) a->input_sums += a->rows * DeferredNorm::SumsOf(a->in);
  if (a->normed == nullptr) return;
  a->normed += a->rows * a->normed_stride;
  a->output_sums += int64_t{a->rows} * a->tiles;
}

}  // namespace

bool HasClusterGemm() {
  constexpr int kRegisters = 40;  // fewer than the kernel's, more than a trap's
  return TakesRegisters(KernelAddress(ClusterGemmKernel<64, 1, false>), kRegisters);
}

cudaError_t ClusterGemm(const MatrixView& x, const float* sums, const LinearParams& params,
                        const DeferredNorm& next, int multiprocessors, cudaStream_t stream) {
  FOX_CHECK(x.rows >= 1 && x.rows == params.out.rows && x.rows <= INT32_MAX);
  FOX_CHECK(x.dtype == DType::kBF16 && x.cols == params.weight.in() && x.row_stride % 8 == 0);
  ClusterGemmArguments a{};
  static_cast<GemmArguments&>(a) = MakeGemmArguments(params);
  const cudaError_t encoded =
      EncodeMatrixMap(const_cast<__nv_bfloat16*>(a.weight), params.weight.out(), a.in, a.in,
                      kHalfOut, kTileCols, &a.weight_map);
  if (encoded != cudaSuccess) return encoded;
  a.tile_rows = a.gated ? kHalfOut : kTileOut;
  a.half_offset = a.gated ? a.out : kHalfOut;
  a.tiles = CeilDiv(a.out, a.tile_rows);
  a.class_chunks = CeilDiv(a.in, kTileCols * kClasses);
  a.vectors = HasVectors(params.out);
  if (params.norm) {
    a.input_sums = sums;
    a.eps = static_cast<float>(params.norm->eps);
  }
  if (params.next_norm) SetNextNorm(*params.next_norm, next, &a);
  for (int64_t first = 0; first < x.rows; first += kPassRows) {
    a.rows = static_cast<int>(std::min<int64_t>(kPassRows, x.rows - first));
    const auto launch = a.gated ? LauncherOf<true>(a.rows) : LauncherOf<false>(a.rows);
    const cudaError_t error = launch(a, multiprocessors, x.Rows(first, a.rows), stream);
    if (error != cudaSuccess) return error;
    MoveOn(&a);
  }
  return cudaSuccess;
}

}  // namespace fox::cuda
