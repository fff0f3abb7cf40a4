// Row transforms as kernels of their own, 16 bytes a thread and load. A norm of a float32 row of
// usual width, and gates, are a warp's work: it has all its loads under way at once and meets no
// barrier. Other transforms take one CTA per row, as input_transform.cuh does them.
#include <cuda_bf16.h>

#include <cstdint>
#include <type_traits>

#include "kernels/core/check.h"
#include "kernels/cuda/linear/input_transform.cuh"
#include "kernels/cuda/linear/input_transform.h"
#include "kernels/cuda/primitives/norm_and_gate.cuh"
#include "kernels/cuda/primitives/vec8.cuh"
#include "kernels/cuda/primitives/warp.cuh"
#include "kernels/cuda/ptx/dependent_launch.cuh"
#include "kernels/cuda/ptx/fast_math.cuh"
#include "kernels/cuda/ptx/global_memory.cuh"
#include "kernels/cuda/runtime/launch.h"
#include "kernels/cuda/runtime/overlap_rows.h"

namespace fox::cuda {
namespace {

constexpr int kThreads = kTransformThreads;

// Brings a norm's weights into the L2, before WaitOnDependencies(). By one block: of many, each
// asking for the same lines, the requests would be as many as those for the rows.
__device__ __forceinline__ void PrefetchWeight(const TransformArguments& s) {
  constexpr int kLineFloats = 32;
  if (blockIdx.x > 0 || s.weight == nullptr) return;
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x) * kLineFloats; i < s.in_cols;
       i += kThreads * kLineFloats) {
    Prefetch(s.weight + i);
  }
}

template <InputTransform::Kind kind, typename In>
__global__ void __launch_bounds__(kThreads)
    TransformKernel(const __grid_constant__ TransformArguments source, __nv_bfloat16* out,
                    int64_t out_stride) {
  TriggerDependents();
  PrefetchWeight(source);
  WaitOnDependencies();
  extern __shared__ float norms[];  // kRmsNorm
  const int64_t row = blockIdx.x;
  TransformInBlock<kind, In, 1>(source, row, 1, 0).Run(out + row * out_stride, norms);
}

// Of the warp in the grid: in the kernels below warps work alone.
__device__ __forceinline__ int WarpIndex() {
  return static_cast<int>(blockIdx.x * (kThreads / kWarp) + Warp());
}

constexpr int kVector = 4;  // columns that a lane has at a time

__device__ __forceinline__ float4 LoadVector(const float* p) {
  const uint4 bits = LoadOnce(p);
  return {__uint_as_float(bits.x), __uint_as_float(bits.y), __uint_as_float(bits.z),
          __uint_as_float(bits.w)};
}

// The vector times `scale` and its weights (null: ones), rounded.
__device__ __forceinline__ void StoreScaled(const float4& v, float scale, const float* weight,
                                            __nv_bfloat16* out) {
  float4 w = {1, 1, 1, 1};
  if (weight != nullptr) w = __ldg(reinterpret_cast<const float4*>(weight));
  *reinterpret_cast<uint2*>(out) = {PackBf16(v.x * scale * w.x, v.y * scale * w.y),
                                    PackBf16(v.z * scale * w.z, v.w * scale * w.w)};
}

// Columns that a warp holds in 16 registers a lane.
constexpr int kStepCols = 512;
constexpr int kMaxSteps = 4;

// kRmsNorm of float32 rows of up to kSteps * kStepCols columns: one warp per row. The last rows
// come first: they were written last, so the L2 may still have them. Sums: as NormRows adds them.
// Two blocks an SM are what registers allow from three steps on. Asked for, ptxas puts three steps'
// loads closer together: 41.5 us instead of 46.0 for 16,384 rows of 1,536 (H200; 3 blocks: 43.2, 4:
// 47.6). Four steps it would spill.
template <int kSteps>
__global__ void __launch_bounds__(kThreads, kSteps == 3 ? 2 : 0)
    NormKernel(const __grid_constant__ TransformArguments s, int64_t rows, __nv_bfloat16* out,
               int64_t out_stride) {
  constexpr int kVectors = kSteps * kStepCols / (kVector * kWarp);
  static_assert(kVector * kWarp == transform::kSumCols);
  TriggerDependents();
  PrefetchWeight(s);
  WaitOnDependencies();
  const int64_t row = rows - 1 - WarpIndex();
  if (row < 0) return;
  const int first = Lane() * kVector;
  const float* in = static_cast<const float*>(s.in) + row * s.in_stride;
  float4 held[kVectors] = {};
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const int column = first + i * transform::kSumCols;
    if (column < s.in_cols) held[i] = LoadVector(in + column);
  }
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const float4& v = held[i];
    sum = __fadd_rn(sum, StridedSum<1>(transform::SumOfFour(v.x, v.y, v.z, v.w)));
  }
  const float scale = RowNormScale(sum, s.in_cols, s.eps);
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const int column = first + i * transform::kSumCols;
    if (column >= s.in_cols) continue;
    StoreScaled(held[i], scale, s.weight == nullptr ? nullptr : s.weight + column,
                out + row * out_stride + column);
  }
}

// Units of a row that a lane gates at a time; a warp takes the row in parts of kPartCols.
constexpr int kPartUnits = 2;
constexpr int kPartCols = kPartUnits * kVec8 * kWarp;

// kGatedAct of bf16 rows: a warp a part of a row.
__global__ void __launch_bounds__(kThreads)
    GatedActKernel(const __grid_constant__ TransformArguments s, int64_t rows, int parts,
                   __nv_bfloat16* out, int64_t out_stride) {
  TriggerDependents();
  WaitOnDependencies();
  const int64_t row = rows - 1 - WarpIndex() / parts;  // as in NormKernel
  if (row < 0) return;
  const int first = static_cast<int>(WarpIndex() % parts) * kPartCols + Lane() * kVec8;
  const __nv_bfloat16* gate = static_cast<const __nv_bfloat16*>(s.in) + row * s.in_stride;
  uint4 gates[kPartUnits] = {}, x[kPartUnits] = {};
#pragma unroll
  for (int i = 0; i < kPartUnits; ++i) {
    const int column = first + i * kVec8 * kWarp;
    if (column >= s.out_cols) continue;
    x[i] = LoadOnce(gate + s.out_cols + column);
    gates[i] = LoadOnce(gate + column);
  }
#pragma unroll
  for (int i = 0; i < kPartUnits; ++i) {
    const int column = first + i * kVec8 * kWarp;
    if (column >= s.out_cols) continue;
    StoreVec8(transform::Gated(Widen(x[i]), Widen(gates[i]), s.act),
              out + row * out_stride + column);
  }
}

struct ApartArguments {
  const float* x;
  int64_t x_stride, rows;
  int cols, tiles;
  const float* weight;
  __nv_bfloat16* out;
  int64_t out_stride;
  float* sums;
};

// A warp one sum of a row, in the order in which the product before leaves it (cluster_gemm.cuh).
__global__ void __launch_bounds__(kThreads)
    TakeApartKernel(const __grid_constant__ ApartArguments a) {
  static_assert(NormedRows::kSumCols == 4 * kWarp);
  TriggerDependents();
  WaitOnDependencies();
  const int64_t row = WarpIndex() / a.tiles;
  if (row >= a.rows) return;
  const int tile = WarpIndex() % a.tiles, column = (tile * kWarp + Lane()) * 4;
  float4 x = {}, weight = {1, 1, 1, 1};
  if (column < a.cols) {
    x = *reinterpret_cast<const float4*>(a.x + row * a.x_stride + column);
    if (a.weight != nullptr) weight = __ldg(reinterpret_cast<const float4*>(a.weight + column));
  }
  const float sum = StridedSum<1>(transform::SumOfFour(x.x, x.y, x.z, x.w));
  if (Lane() == 0) a.sums[row * a.tiles + tile] = sum;
  if (column >= a.cols) return;
  *reinterpret_cast<uint2*>(a.out + row * a.out_stride + column) = {
      PackBf16(x.x * weight.x, x.y * weight.y), PackBf16(x.z * weight.z, x.w * weight.w)};
}

unsigned WarpBlocks(int64_t warps) {
  constexpr int kWarps = kThreads / kWarp;
  return static_cast<unsigned>((warps + kWarps - 1) / kWarps);
}

template <int kSteps = 1>
cudaError_t LaunchNorm(const TransformArguments& source, int64_t rows, __nv_bfloat16* out,
                       int64_t out_stride, cudaStream_t stream) {
  if constexpr (kSteps < kMaxSteps) {
    if (source.in_cols > kSteps * kStepCols) {
      return LaunchNorm<kSteps + 1>(source, rows, out, out_stride, stream);
    }
  }
  return Launch(NormKernel<kSteps>, dim3(WarpBlocks(rows)), dim3(kThreads),
                SmemConfig(0, rows <= kOverlapRows), stream, source, rows, out, out_stride);
}

cudaError_t LaunchGatedAct(const TransformArguments& source, int64_t rows, __nv_bfloat16* out,
                           int64_t out_stride, cudaStream_t stream) {
  const int parts = (source.out_cols + kPartCols - 1) / kPartCols;
  return Launch(GatedActKernel, dim3(WarpBlocks(rows * parts)), dim3(kThreads),
                SmemConfig(0, rows <= kOverlapRows), stream, source, rows, parts, out, out_stride);
}

}  // namespace

cudaError_t TransformRows(const MatrixView& in, const InputTransform& transform,
                          const MatrixView& out, cudaStream_t stream) {
  TransformArguments source = MakeTransformArguments(in, transform);
  source.apart = false;
  FOX_CHECK(out.dtype == DType::kBF16 && out.rows == in.rows && out.cols == source.out_cols);
  constexpr int64_t kAlign = 16;
  FOX_CHECK(reinterpret_cast<uintptr_t>(out.data) % kAlign == 0);
  FOX_CHECK(out.row_stride * static_cast<int64_t>(SizeOf(out.dtype)) % kAlign == 0);
  auto* const to = static_cast<__nv_bfloat16*>(out.data);
  using Kind = InputTransform::Kind;
  return DispatchTransform(transform.kind, in.dtype, [&]<Kind kind, typename In>() {
    constexpr bool kNarrow = std::is_same_v<In, __nv_bfloat16>;
    if constexpr (kind == Kind::kGatedAct && kNarrow) {
      return LaunchGatedAct(source, in.rows, to, out.row_stride, stream);
    } else {
      constexpr bool kNorm = kind == Kind::kRmsNorm;
      if (kNorm && !kNarrow && source.in_cols <= kMaxSteps * kStepCols) {
        return LaunchNorm(source, in.rows, to, out.row_stride, stream);
      }
      const int norms = kNorm ? transform::NormFloats(source.in_cols) : 0;
      const SmemConfig shared(static_cast<size_t>(norms) * sizeof(float), in.rows <= kOverlapRows);
      return Launch(TransformKernel<kind, In>, dim3(static_cast<unsigned>(in.rows)), dim3(kThreads),
                    shared, stream, source, to, out.row_stride);
    }
  });
}

cudaError_t TakeApart(const MatrixView& in, const NormedRows& out, cudaStream_t stream) {
  constexpr uintptr_t kAlign = 16;
  FOX_CHECK(in.dtype == DType::kF32 && out.rows.dtype == DType::kBF16 && in.cols % 8 == 0);
  FOX_CHECK(out.rows.rows == in.rows && out.rows.cols == in.cols);
  FOX_CHECK(in.row_stride % 4 == 0 && out.rows.row_stride % 8 == 0);
  for (const void* p :
       {const_cast<const void*>(in.data), out.weight, const_cast<const void*>(out.rows.data)}) {
    FOX_CHECK(reinterpret_cast<uintptr_t>(p) % kAlign == 0);
  }
  const int64_t tiles = NormedRows::SumsOf(in.cols);
  return Launch(
      TakeApartKernel, dim3(WarpBlocks(in.rows * tiles)), dim3(kThreads),
      SmemConfig(0, in.rows <= kOverlapRows), stream,
      ApartArguments{static_cast<const float*>(in.data), in.row_stride, in.rows,
                     static_cast<int>(in.cols), static_cast<int>(tiles),
                     static_cast<const float*>(out.weight),
                     static_cast<__nv_bfloat16*>(out.rows.data), out.rows.row_stride, out.sums});
}

}  // namespace fox::cuda
