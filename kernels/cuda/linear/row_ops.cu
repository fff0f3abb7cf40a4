// Embedding lookup, gathering and transforming rows, 16 bytes a thread and load. A norm of a row of
// usual width, and an output gate, are a warp's work: it has all its loads under way at once and
// meets no barrier. Other transforms take a block a row, as input_transform.cuh does them.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "kernels/core/check.h"
#include "kernels/cuda/linear/input_transform.cuh"
#include "kernels/cuda/linear/row_ops.h"
#include "kernels/cuda/primitives/vec8.cuh"
#include "kernels/cuda/primitives/warp.cuh"
#include "kernels/cuda/ptx/global_memory.cuh"
#include "kernels/cuda/runtime/launch.h"

namespace fox::cuda {
namespace {

constexpr int kThreads = kTransformThreads;
using fox::cuda::LoadVec8;  // beside that of fp16

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

// The sequence s with row_begin[s] <= row < row_begin[s + 1].
__device__ int SequenceOf(const BatchView& batch, int64_t row) {
  int low = 0, high = batch.num_seqs - 1;
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (batch.row_begin[middle] <= row) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

__device__ int64_t TokenOf(const BatchView& batch, int64_t row, int64_t vocabulary) {
  int32_t id = batch.token_ids[row];
  if (id == kLastSampledToken) {
    const int32_t slot = batch.sampled_tokens == nullptr ? -1 : batch.slot[SequenceOf(batch, row)];
    id = slot < 0 ? 0 : batch.sampled_tokens[slot];
  }
  return min(max(static_cast<int64_t>(id), int64_t{0}), vocabulary - 1);
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    EmbedKernel(const __grid_constant__ BatchView batch, const T* table, int64_t table_stride,
                int64_t vocabulary, int units, float* out, int64_t out_stride) {
  TriggerDependents();
  WaitOnDependencies();
  const int64_t row = blockIdx.x;
  const T* from = table + TokenOf(batch, row, vocabulary) * table_stride;
  float* to = out + row * out_stride;
  for (int u = static_cast<int>(threadIdx.x); u < units; u += kThreads) {
    StoreVec8(LoadVec8(from + u * kVec8), to + u * kVec8);
  }
}

__global__ void __launch_bounds__(kThreads)
    GatherKernel(const float* in, int64_t in_stride, const int64_t* rows, int units, float* out,
                 int64_t out_stride) {
  TriggerDependents();
  WaitOnDependencies();
  const float* from = in + rows[blockIdx.x] * in_stride;
  float* to = out + static_cast<int64_t>(blockIdx.x) * out_stride;
  for (int u = static_cast<int>(threadIdx.x); u < units; u += kThreads) {
    StoreVec8(LoadVec8(from + u * kVec8), to + u * kVec8);
  }
}

template <InputTransform::Kind kind, typename In>
__global__ void __launch_bounds__(kThreads)
    TransformKernel(const __grid_constant__ TransformArguments source, __nv_bfloat16* out,
                    int64_t out_stride) {
  TriggerDependents();
  PrefetchTransform(source);
  WaitOnDependencies();
  const int64_t row = blockIdx.x;
  TransformRowsInBlock<kind, In, 1>(source, row, 1, out + row * out_stride, out_stride);
}

// Threads of the kernels below, whose warps work alone.
constexpr int kWarpThreads = 128;
constexpr int kLanes = transform::kLanes;

__device__ __forceinline__ int WarpIndex() {
  return static_cast<int>(blockIdx.x * (kWarpThreads / kLanes) + threadIdx.x / kLanes);
}

__device__ __forceinline__ uint32_t RoundPair(float a, float b) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(a, b);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

// 16 bytes of a row: four float32 or eight bf16.
template <typename In>
struct Vector {
  static constexpr int kSize = 16 / sizeof(In);
  uint4 bits;

  __device__ __forceinline__ float operator[](int i) const {
    const uint32_t words[4] = {bits.x, bits.y, bits.z, bits.w};
    if constexpr (kSize == 4) return __uint_as_float(words[i]);
    return __uint_as_float(i % 2 == 0 ? words[i / 2] << 16 : words[i / 2] & 0xffff0000u);
  }
};

// The vector times `scale` and its weights (null: ones), rounded.
template <typename In>
__device__ __forceinline__ void StoreScaled(const Vector<In>& v, float scale, const float* weight,
                                            __nv_bfloat16* out) {
  constexpr int kSize = Vector<In>::kSize;
  uint32_t words[kSize / 2];
#pragma unroll
  for (int i = 0; i < kSize; i += 4) {
    float4 w = {1, 1, 1, 1};
    if (weight != nullptr) w = __ldg(reinterpret_cast<const float4*>(weight + i));
    words[i / 2] = RoundPair(v[i] * scale * w.x, v[i + 1] * scale * w.y);
    words[i / 2 + 1] = RoundPair(v[i + 2] * scale * w.z, v[i + 3] * scale * w.w);
  }
  if constexpr (kSize == 4) {
    *reinterpret_cast<uint2*>(out) = {words[0], words[1]};
  } else {
    *reinterpret_cast<uint4*>(out) = {words[0], words[1], words[2], words[3]};
  }
}

// Columns that a warp holds in 16 registers a lane (f32).
constexpr int kStepCols = 512;
constexpr int kMaxSteps = 4;

// kRmsNorm of rows of up to kSteps * kStepCols columns: a warp a row. The last rows come first:
// they were written last, so the L2 may still have them.
template <typename In, int kSteps>
__global__ void __launch_bounds__(kWarpThreads)
    NormKernel(const __grid_constant__ TransformArguments s, int64_t rows, __nv_bfloat16* out,
               int64_t out_stride) {
  constexpr int kSize = Vector<In>::kSize, kVectors = kSteps * kStepCols / (kSize * kLanes);
  TriggerDependents();
  PrefetchTransform<kWarpThreads>(s);
  WaitOnDependencies();
  const int64_t row = rows - 1 - WarpIndex();
  if (row < 0) return;
  const int first = static_cast<int>(threadIdx.x) % kLanes * kSize;
  const In* in = static_cast<const In*>(s.in) + row * s.in_stride;
  Vector<In> held[kVectors] = {};
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const int column = first + i * kSize * kLanes;
    if (column < s.in_cols) held[i].bits = LoadOnce(in + column);
  }
  float sums[2] = {};
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
#pragma unroll
    for (int j = 0; j < kSize; ++j) sums[i % 2] = fmaf(held[i][j], held[i][j], sums[i % 2]);
  }
  float sum = sums[0] + sums[1];
#pragma unroll
  for (int offset = kLanes / 2; offset > 0; offset /= 2) {
    sum += __shfl_xor_sync(kAllLanes, sum, offset);
  }
  const float scale = rsqrtf(sum / static_cast<float>(s.in_cols) + s.eps);
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const int column = first + i * kSize * kLanes;
    if (column >= s.in_cols) continue;
    StoreScaled(held[i], scale, s.weight == nullptr ? nullptr : s.weight + column,
                out + row * out_stride + column);
  }
}

// Units of a row that a lane gates at a time; a warp takes the row in parts of kPartCols.
constexpr int kPartUnits = 3;
constexpr int kPartCols = kPartUnits * kVec8 * kLanes;

template <typename In>
__device__ __forceinline__ transform::RawUnit<In> LoadStreamingUnit(const In* p) {
  transform::RawUnit<In> raw;
#pragma unroll
  for (int i = 0; i < static_cast<int>(sizeof(In)) / 2; ++i) {
    raw.words[i] = LoadOnce(reinterpret_cast<const uint4*>(p) + i);
  }
  return raw;
}

// kOutputGate: a warp a part of a row. The lanes of a head, head_dim / 8 of them, are neighbours,
// and 256 columns are whole heads, so a norm stays among them.
template <typename In>
__global__ void __launch_bounds__(kWarpThreads)
    OutputGateKernel(const __grid_constant__ TransformArguments s, int64_t rows, int parts,
                     __nv_bfloat16* out, int64_t out_stride) {
  TriggerDependents();
  PrefetchTransform<kWarpThreads>(s);
  WaitOnDependencies();
  const int64_t row = rows - 1 - WarpIndex() / parts;  // as in NormKernel
  if (row < 0) return;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const int first = static_cast<int>(WarpIndex() % parts) * kPartCols + lane * kVec8;
  const In* in = static_cast<const In*>(s.in) + row * s.in_stride;
  const __nv_bfloat16* gate = s.gate == nullptr ? nullptr : s.gate + row * s.gate_stride;
  transform::RawUnit<In> x[kPartUnits] = {};
  transform::RawUnit<__nv_bfloat16> gates[kPartUnits] = {};
#pragma unroll
  for (int i = 0; i < kPartUnits; ++i) {
    const int column = first + i * kVec8 * kLanes;
    if (column >= s.in_cols) continue;
    x[i] = LoadStreamingUnit(in + column);
    if (gate != nullptr) gates[i] = LoadStreamingUnit(gate + column);
  }
#pragma unroll
  for (int i = 0; i < kPartUnits; ++i) {
    const int column = first + i * kVec8 * kLanes;
    const bool there = column < s.in_cols;
    Float8 unit = Widened(x[i]);
    if (s.weight != nullptr) {
      float sum = transform::SumSquares(unit);
      for (int offset = s.head_dim / kVec8 / 2; offset > 0; offset /= 2) {
        sum += __shfl_xor_sync(kAllLanes, sum, offset);
      }
      const float scale = rsqrtf(sum / static_cast<float>(s.head_dim) + s.eps);
      if (there) unit = transform::Normalized(unit, scale, transform::LoadUnit(s.weight + column));
    }
    if (!there) continue;
    if (gate != nullptr) unit = transform::Gated(unit, Widened(gates[i]), s.act);
    StoreVec8(unit, out + row * out_stride + column);
  }
}

unsigned WarpBlocks(int64_t warps) {
  constexpr int kWarps = kWarpThreads / kLanes;
  return static_cast<unsigned>((warps + kWarps - 1) / kWarps);
}

template <typename In, int kSteps = 1>
cudaError_t LaunchNorm(const TransformArguments& source, int64_t rows, __nv_bfloat16* out,
                       int64_t out_stride, cudaStream_t stream) {
  if constexpr (kSteps < kMaxSteps) {
    if (source.in_cols > kSteps * kStepCols) {
      return LaunchNorm<In, kSteps + 1>(source, rows, out, out_stride, stream);
    }
  }
  return Launch(NormKernel<In, kSteps>, dim3(WarpBlocks(rows)), dim3(kWarpThreads), 0, stream,
                source, rows, out, out_stride);
}

void CheckRows(const MatrixView& m) {
  constexpr int64_t kAlign = 16;
  FOX_CHECK(m.cols > 0 && m.cols % kVec8 == 0);
  FOX_CHECK(reinterpret_cast<uintptr_t>(m.data) % kAlign == 0);
  FOX_CHECK(m.row_stride * static_cast<int64_t>(SizeOf(m.dtype)) % kAlign == 0);
}

template <typename T>
cudaError_t LaunchEmbed(const BatchView& batch, const MatrixView& table, const MatrixView& out,
                        cudaStream_t stream) {
  return Launch(EmbedKernel<T>, dim3(static_cast<unsigned>(batch.num_rows)), dim3(kThreads), 0,
                stream, batch, static_cast<const T*>(table.data), table.row_stride, table.rows,
                static_cast<int>(out.cols / kVec8), static_cast<float*>(out.data), out.row_stride);
}

}  // namespace

cudaError_t Embed(const BatchView& batch, const MatrixView& table, const MatrixView& out,
                  cudaStream_t stream) {
  FOX_CHECK(out.dtype == DType::kF32 && out.cols == table.cols && out.rows >= batch.num_rows);
  FOX_CHECK(batch.num_seqs > 0 || batch.num_rows == 0);
  CheckRows(table);
  CheckRows(out);
  switch (table.dtype) {
    case DType::kF32:
      return LaunchEmbed<float>(batch, table, out, stream);
    case DType::kBF16:
      return LaunchEmbed<__nv_bfloat16>(batch, table, out, stream);
    default:
      FOX_CHECK(table.dtype == DType::kF16);
      return LaunchEmbed<__half>(batch, table, out, stream);
  }
}

cudaError_t GatherRows(const MatrixView& in, const int64_t* rows, const MatrixView& out,
                       cudaStream_t stream) {
  FOX_CHECK(in.dtype == DType::kF32 && out.dtype == DType::kF32 && in.cols == out.cols);
  CheckRows(in);
  CheckRows(out);
  return Launch(GatherKernel, dim3(static_cast<unsigned>(out.rows)), dim3(kThreads), 0, stream,
                static_cast<const float*>(in.data), in.row_stride, rows,
                static_cast<int>(out.cols / kVec8), static_cast<float*>(out.data), out.row_stride);
}

cudaError_t TransformRows(const MatrixView& in, const InputTransform& transform,
                          const MatrixView& out, cudaStream_t stream) {
  const TransformArguments source = MakeTransformArguments(in, transform);
  FOX_CHECK(out.dtype == DType::kBF16 && out.rows == in.rows && out.cols == source.out_cols);
  CheckRows(out);
  auto* const to = static_cast<__nv_bfloat16*>(out.data);
  return DispatchTransform(transform.kind, in.dtype, [&]<InputTransform::Kind kind, typename In>() {
    if constexpr (kind == InputTransform::Kind::kOutputGate) {
      const int parts = (source.out_cols + kPartCols - 1) / kPartCols;
      return Launch(OutputGateKernel<In>, dim3(WarpBlocks(in.rows * parts)), dim3(kWarpThreads), 0,
                    stream, source, in.rows, parts, to, out.row_stride);
    } else {
      if (kind == InputTransform::Kind::kRmsNorm && source.in_cols <= kMaxSteps * kStepCols) {
        return LaunchNorm<In>(source, in.rows, to, out.row_stride, stream);
      }
      return Launch(TransformKernel<kind, In>, dim3(static_cast<unsigned>(in.rows)), dim3(kThreads),
                    0, stream, source, to, out.row_stride);
    }
  });
}

}  // namespace fox::cuda
