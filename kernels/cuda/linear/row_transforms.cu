// Norms, gates and lookups of rows, and the widening of weights of 8 bits, 16 bytes a thread and
// load. A norm of a row of usual width is a warp's work: it has all its loads under way at once and
// needs no barrier.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "kernels/core/check.h"
#include "kernels/cuda/linear/device_weight.h"
#include "kernels/cuda/linear/row_transforms.h"
#include "kernels/cuda/primitives/kv_index.cuh"
#include "kernels/cuda/primitives/norm_and_gate.cuh"
#include "kernels/cuda/primitives/vec8.cuh"
#include "kernels/cuda/ptx/dependent_launch.cuh"
#include "kernels/cuda/ptx/global_memory.cuh"
#include "kernels/cuda/ptx/mma_sm80.cuh"
#include "kernels/cuda/runtime/launch.h"

namespace fox::cuda {
namespace {

constexpr int kThreads = 256;

struct NormArguments {
  const float* in;
  int64_t in_stride, rows;
  int cols;
  const float* weight;  // [cols]
  float eps;
  __nv_bfloat16* out;
  int64_t out_stride;
  float* sums;  // DeferNorm
};

// Brings the weights into the L2, before WaitOnDependencies(). By one block: if all blocks
// requested the same lines, they would make as many requests for them as for the rows.
__device__ __forceinline__ void PrefetchWeight(const NormArguments& a) {
  constexpr int kLineFloats = 32;
  if (blockIdx.x > 0) return;
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x) * kLineFloats; i < a.cols;
       i += kThreads * kLineFloats) {
    Prefetch(a.weight + i);
  }
}

// Index of the warp in the grid: warps work alone.
__device__ __forceinline__ int WarpIndex() {
  return static_cast<int>(blockIdx.x * (kThreads / kWarp) + Warp());
}

constexpr int kVector = 4;  // columns that a lane has at a time
static_assert(kVector * kWarp == kNormSumCols && kNormSumCols == DeferredNorm::kSumCols);

__device__ __forceinline__ float4 LoadVector(const float* p) {
  const uint4 bits = LoadOnce(p);
  return {__uint_as_float(bits.x), __uint_as_float(bits.y), __uint_as_float(bits.z),
          __uint_as_float(bits.w)};
}

__device__ __forceinline__ float4 WeightAt(const NormArguments& a, int column) {
  return __ldg(reinterpret_cast<const float4*>(a.weight + column));
}

// The vector times `scale` and its weights, rounded.
__device__ __forceinline__ void StoreScaled(const NormArguments& a, int64_t row, int column,
                                            const float4& v, float scale) {
  const float4 w = WeightAt(a, column);
  *reinterpret_cast<uint2*>(a.out + row * a.out_stride + column) = {
      PackBf16(v.x * scale * w.x, v.y * scale * w.y),
      PackBf16(v.z * scale * w.z, v.w * scale * w.w)};
}

// Columns that a warp holds in 16 registers a lane.
constexpr int kStepCols = 512;
constexpr int kMaxSteps = 4;

// Rows of up to kSteps * kStepCols columns: one warp per row. The last rows come first: they were
// written last, so the L2 may still have them. Two blocks an SM are what registers allow from three
// steps on. With that bound, ptxas puts three steps' loads closer together: 41.5 us instead of 46.0
// for 16,384 rows of 1,536 (H200; 3 blocks: 43.2, 4: 47.6). Four steps it would spill.
template <int kSteps>
__global__ void __launch_bounds__(kThreads, kSteps == 3 ? 2 : 0)
    NormKernel(const __grid_constant__ NormArguments a) {
  constexpr int kVectors = kSteps * kStepCols / kNormSumCols;
  TriggerDependents();
  PrefetchWeight(a);
  WaitOnDependencies();
  const int64_t row = a.rows - 1 - WarpIndex();
  if (row < 0) return;
  const int first = Lane() * kVector;
  const float* in = a.in + row * a.in_stride;
  float4 held[kVectors] = {};
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const int column = first + i * kNormSumCols;
    if (column < a.cols) held[i] = LoadVector(in + column);
  }
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) sum = __fadd_rn(sum, SumOf128(held[i]));
  const float scale = RowNormScale(sum, a.cols, a.eps);
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const int column = first + i * kNormSumCols;
    if (column < a.cols) StoreScaled(a, row, column, held[i], scale);
  }
}

// Wider rows: a block per row, which is read twice.
__global__ void __launch_bounds__(kThreads)
    WideNormKernel(const __grid_constant__ NormArguments a) {
  extern __shared__ float sums[];
  TriggerDependents();
  PrefetchWeight(a);
  WaitOnDependencies();
  const int64_t row = a.rows - 1 - blockIdx.x;
  const float* in = a.in + row * a.in_stride;
#pragma unroll 4
  for (int tile = Warp(); tile < NormSums(a.cols); tile += kThreads / kWarp) {
    const int column = (tile * kWarp + Lane()) * kVector;
    float4 v = {};
    if (column < a.cols) v = *reinterpret_cast<const float4*>(in + column);
    const float sum = SumOf128(v);
    if (Lane() == 0) sums[tile] = sum;
  }
  __syncthreads();
  const float scale = DeferredScale(sums, a.cols, a.eps);
#pragma unroll 4
  for (int c = static_cast<int>(threadIdx.x) * kVector; c < a.cols; c += kThreads * kVector) {
    StoreScaled(a, row, c, *reinterpret_cast<const float4*>(in + c), scale);
  }
}

// A warp per sum of a row.
__global__ void __launch_bounds__(kThreads)
    DeferNormKernel(const __grid_constant__ NormArguments a) {
  TriggerDependents();
  WaitOnDependencies();
  const int sums = NormSums(a.cols);
  const int64_t row = WarpIndex() / sums;
  if (row >= a.rows) return;
  const int tile = WarpIndex() % sums, column = (tile * kWarp + Lane()) * kVector;
  const bool there = column < a.cols;
  float4 x = {}, w = {};
  if (there) {
    x = *reinterpret_cast<const float4*>(a.in + row * a.in_stride + column);
    w = WeightAt(a, column);
  }
  DeferColumns(x, w, there, a.out + row * a.out_stride + column, a.sums + row * sums + tile);
}

// A thread per 8 columns; the last rows first, as in NormKernel.
__global__ void __launch_bounds__(kThreads)
    GateKernel(const __nv_bfloat16* y, int64_t y_stride, Activation act, int64_t rows, int units,
               __nv_bfloat16* out, int64_t out_stride) {
  TriggerDependents();
  WaitOnDependencies();
  const int64_t i = rows * units - 1 - (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x);
  if (i < 0) return;
  const int64_t row = i / units, column = i % units * kVec8;
  const __nv_bfloat16* gate = y + row * y_stride + column;
  const uint4 x = LoadOnce(gate + units * kVec8), gates = LoadOnce(gate);
  StoreVec8(Gated(Widen(x), Widen(gates), act), out + row * out_stride + column);
}

__global__ void __launch_bounds__(kThreads)
    ConvertKernel(const float* in, int64_t units, __nv_bfloat16* out) {
  TriggerDependents();
  WaitOnDependencies();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < units) StoreVec8(LoadVec8(in + i * kVec8), out + i * kVec8);
}

using fox::cuda::LoadVec8;  // the overload below is for fp16

__device__ Float8 LoadVec8(const __half* p) {
  const uint4 bits = *reinterpret_cast<const uint4*>(p);
  const __half2* pairs = reinterpret_cast<const __half2*>(&bits);
  Float8 vector;
#pragma unroll
  for (int i = 0; i < kVec8 / 2; ++i) {
    const float2 pair = __half22float2(pairs[i]);
    vector.x[2 * i] = pair.x;
    vector.x[2 * i + 1] = pair.y;
  }
  return vector;
}

// The row of a table that a row looks up. kEarly: ids and table are there before the wait, and
// nothing uses the output any more.
struct TokenIds {
  static constexpr bool kEarly = true;
  BatchView batch;
  int64_t vocabulary;

  __device__ int64_t operator()(int64_t row) const {
    int32_t id = LoadCoherent(batch.token_ids + row);
    if (id == kLastSampledToken) {
      const int seq = UpperBoundIndex(row, batch.num_seqs,
                                      [&](int s) { return LoadCoherent(batch.row_begin + s); });
      const int32_t slot = batch.sampled_tokens == nullptr ? -1 : LoadCoherent(batch.slot + seq);
      id = slot < 0 ? 0 : LoadCoherent(batch.sampled_tokens + slot);
    }
    return min(max(static_cast<int64_t>(id), int64_t{0}), vocabulary - 1);
  }
};
struct RowIds {
  static constexpr bool kEarly = false;
  const int64_t* rows;
  __device__ int64_t operator()(int64_t row) const { return rows[row]; }
};

template <typename T, typename Ids>
__global__ void __launch_bounds__(kThreads)
    LookUpKernel(const __grid_constant__ Ids ids, const T* table, int64_t table_stride, int units,
                 float* out, int64_t out_stride) {
  TriggerDependents();
  if constexpr (!Ids::kEarly) WaitOnDependencies();
  const T* from = table + ids(blockIdx.x) * table_stride;
  float* to = out + static_cast<int64_t>(blockIdx.x) * out_stride;
  for (int u = static_cast<int>(threadIdx.x); u < units; u += kThreads) {
    StoreVec8(LoadVec8(from + u * kVec8), to + u * kVec8);
  }
  if constexpr (Ids::kEarly) WaitOnDependencies();
}

unsigned BlocksOf(int64_t count, int of_block) {
  return static_cast<unsigned>((count + of_block - 1) / of_block);
}
unsigned WarpBlocks(int64_t warps) { return BlocksOf(warps, kThreads / kWarp); }

void CheckAligned(const MatrixView& m) {
  FOX_CHECK(reinterpret_cast<uintptr_t>(m.data) % 16 == 0);
  FOX_CHECK(m.row_stride * static_cast<int64_t>(SizeOf(m.dtype)) % 16 == 0);
}

template <typename T, typename Ids>
cudaError_t LookUp(const Ids& ids, const MatrixView& table, int64_t rows, const MatrixView& out,
                   cudaStream_t stream) {
  FOX_CHECK(out.dtype == DType::kF32 && out.cols == table.cols && out.rows >= rows);
  FOX_CHECK(out.cols > 0 && out.cols % kVec8 == 0);
  CheckAligned(table);
  CheckAligned(out);
  return Launch(LookUpKernel<T, Ids>, dim3(static_cast<unsigned>(rows)), dim3(kThreads),
                SmemConfig(0, rows <= kOverlapRows), stream, ids, static_cast<const T*>(table.data),
                table.row_stride, static_cast<int>(out.cols / kVec8), static_cast<float*>(out.data),
                out.row_stride);
}

NormArguments MakeNormArguments(const MatrixView& in, const RmsNorm& norm, const MatrixView& out) {
  FOX_CHECK(in.dtype == DType::kF32 && out.dtype == DType::kBF16 && in.cols % kVec8 == 0);
  FOX_CHECK(out.rows == in.rows && out.cols == in.cols);
  CheckAligned(in);
  CheckAligned(out);
  FOX_CHECK(reinterpret_cast<uintptr_t>(norm.weight) % 16 == 0);
  return {.in = static_cast<const float*>(in.data),
          .in_stride = in.row_stride,
          .rows = in.rows,
          .cols = static_cast<int>(in.cols),
          .weight = static_cast<const float*>(norm.weight),
          .eps = static_cast<float>(norm.eps),
          .out = static_cast<__nv_bfloat16*>(out.data),
          .out_stride = out.row_stride,
          .sums = nullptr};
}

SmemConfig Shared(int64_t rows, int64_t bytes = 0) {
  return {static_cast<size_t>(bytes), rows <= kOverlapRows};
}

template <int kSteps = 1>
auto NormKernelFor(int64_t cols) {
  if constexpr (kSteps < kMaxSteps) {
    if (cols > kSteps * kStepCols) return NormKernelFor<kSteps + 1>(cols);
  }
  return NormKernel<kSteps>;
}

struct WidenArguments {
  const uint8_t* codes;  // the first fp8_rows rows
  const float* scales;
  const uint4* rest;  // the others
  int64_t fp8_rows, rows, cols;
  uint32_t units;  // with the padding's
  uint4* out;
};

// A thread per 8 columns, the lower or the upper half of a step's 16.
__global__ void __launch_bounds__(kThreads) WidenKernel(const WidenArguments a) {
  TriggerDependents();
  const uint32_t i = blockIdx.x * kThreads + threadIdx.x;
  const auto of_row = static_cast<uint32_t>(a.cols / kVec8);
  const int64_t row = i / of_row, unit = i % of_row;
  uint4 values = {};
  if (row < a.fp8_rows) {
    const uint8_t* const from = a.codes + row * Fp8Stride(a.cols) + unit / 2 * kFp8Step;
    const uint4 codes = *reinterpret_cast<const uint4*>(from);
    const auto bits =
        static_cast<uint32_t>(__bfloat16_as_ushort(__float2bfloat16_rn(a.scales[row])));
    const auto widened = [&](uint32_t word) {
      return MultiplyBf16x2(WidenPair(Fp8Pair(word, unit % 2 == 1)), bits << 16 | bits);
    };
    values = {widened(codes.x), widened(codes.y), widened(codes.z), widened(codes.w)};
  } else if (row < a.rows) {
    values = a.rest[(row - a.fp8_rows) * of_row + unit];
  }
  WaitOnDependencies();  // an earlier product may still read the previous weight there
  if (i < a.units) a.out[i] = values;
}

}  // namespace

cudaError_t NormRows(const MatrixView& in, const RmsNorm& norm, const MatrixView& out,
                     cudaStream_t stream) {
  const NormArguments a = MakeNormArguments(in, norm, out);
  if (in.cols > kMaxSteps * kStepCols) {
    return Launch(WideNormKernel, dim3(static_cast<unsigned>(in.rows)), dim3(kThreads),
                  Shared(in.rows, NormSums(a.cols) * static_cast<int64_t>(sizeof(float))), stream,
                  a);
  }
  return Launch(NormKernelFor(in.cols), dim3(WarpBlocks(in.rows)), dim3(kThreads), Shared(in.rows),
                stream, a);
}

cudaError_t DeferNorm(const MatrixView& in, const RmsNorm& norm, const DeferredNorm& out,
                      cudaStream_t stream) {
  NormArguments a = MakeNormArguments(in, norm, out.rows);
  a.sums = out.sums;
  return Launch(DeferNormKernel, dim3(WarpBlocks(in.rows * DeferredNorm::SumsOf(in.cols))),
                dim3(kThreads), Shared(in.rows), stream, a);
}

cudaError_t GateRows(const MatrixView& y, Activation act, const MatrixView& out,
                     cudaStream_t stream) {
  FOX_CHECK(y.dtype == DType::kBF16 && out.dtype == DType::kBF16 && y.rows == out.rows);
  FOX_CHECK(y.cols == 2 * out.cols && out.cols % kVec8 == 0);
  CheckAligned(y);
  CheckAligned(out);
  const int64_t units = out.cols / kVec8;
  return Launch(GateKernel, dim3(BlocksOf(y.rows * units, kThreads)), dim3(kThreads),
                Shared(y.rows), stream, static_cast<const __nv_bfloat16*>(y.data), y.row_stride,
                act, y.rows, static_cast<int>(units), static_cast<__nv_bfloat16*>(out.data),
                out.row_stride);
}

cudaError_t ConvertRows(const MatrixView& in, const MatrixView& out, cudaStream_t stream) {
  FOX_CHECK(in.dtype == DType::kF32 && out.dtype == DType::kBF16 && in.rows == out.rows);
  FOX_CHECK(in.cols == out.cols && in.row_stride == in.cols && out.row_stride == out.cols);
  FOX_CHECK(in.cols % kVec8 == 0);
  const int64_t units = in.rows * in.cols / kVec8;
  return Launch(ConvertKernel, dim3(BlocksOf(units, kThreads)), dim3(kThreads), 0, stream,
                static_cast<const float*>(in.data), units, static_cast<__nv_bfloat16*>(out.data));
}

cudaError_t WidenWeight(const DeviceWeight& weight, void* out, cudaStream_t stream) {
  const DeviceFp8Rows& fp8 = weight.fp8();
  const int64_t units = PaddedRows(weight.out()) * weight.in() / kVec8;
  FOX_CHECK(units <= INT32_MAX);
  const WidenArguments a{fp8.codes.as<const uint8_t>(),
                         fp8.scales.as<const float>(),
                         static_cast<const uint4*>(weight.data()),
                         fp8.rows,
                         weight.out(),
                         weight.in(),
                         static_cast<uint32_t>(units),
                         static_cast<uint4*>(out)};
  // In steps of few rows it overlaps kernels that ask for it.
  const SmemConfig largest(0, true);
  return Launch(WidenKernel, dim3(BlocksOf(units, kThreads)), dim3(kThreads), largest, stream, a);
}

cudaError_t Embed(const BatchView& batch, const MatrixView& table, const MatrixView& out,
                  cudaStream_t stream) {
  FOX_CHECK(batch.num_seqs > 0 || batch.num_rows == 0);
  const TokenIds ids{batch, table.rows};
  switch (table.dtype) {
    case DType::kF32:
      return LookUp<float>(ids, table, batch.num_rows, out, stream);
    case DType::kBF16:
      return LookUp<__nv_bfloat16>(ids, table, batch.num_rows, out, stream);
    default:
      FOX_CHECK(table.dtype == DType::kF16);
      return LookUp<__half>(ids, table, batch.num_rows, out, stream);
  }
}

cudaError_t GatherRows(const MatrixView& in, const int64_t* rows, const MatrixView& out,
                       cudaStream_t stream) {
  FOX_CHECK(in.dtype == DType::kF32);
  return LookUp<float>(RowIds{rows}, in, out.rows, out, stream);
}

}  // namespace fox::cuda
