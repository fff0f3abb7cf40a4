// Embedding lookup, gathering and transforming rows: one block a row, 16 bytes a thread and step.
// The transforms themselves are in transform_row.cuh.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "kernels/core/check.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/row_ops.h"
#include "kernels/cuda/transform_row.cuh"

namespace fox::cuda {
namespace {

constexpr int kThreads = kTransformThreads;
constexpr int kUnit = transform::kUnit;
using transform::LoadUnit;
using transform::Unit;

__device__ Unit LoadUnit(const __half* p) {
  const uint4 bits = *reinterpret_cast<const uint4*>(p);
  const __half2* pairs = reinterpret_cast<const __half2*>(&bits);
  Unit unit;
#pragma unroll
  for (int i = 0; i < kUnit / 2; ++i) {
    const float2 pair = __half22float2(pairs[i]);
    unit.x[2 * i] = pair.x;
    unit.x[2 * i + 1] = pair.y;
  }
  return unit;
}

__device__ void StoreUnit(const Unit& unit, float* p) {
  const float* x = unit.x;
  reinterpret_cast<float4*>(p)[0] = make_float4(x[0], x[1], x[2], x[3]);
  reinterpret_cast<float4*>(p)[1] = make_float4(x[4], x[5], x[6], x[7]);
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
  if (id == kDrawnToken) {
    const int32_t slot = batch.drawn_tokens == nullptr ? -1 : batch.slot[SequenceOf(batch, row)];
    id = slot < 0 ? 0 : batch.drawn_tokens[slot];
  }
  return min(max(static_cast<int64_t>(id), int64_t{0}), vocabulary - 1);
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    EmbedKernel(const __grid_constant__ BatchView batch, const T* table, int64_t table_stride,
                int64_t vocabulary, int units, float* out, int64_t out_stride) {
  LetNextStart();
  WaitForPrevious();
  const int64_t row = blockIdx.x;
  const T* from = table + TokenOf(batch, row, vocabulary) * table_stride;
  float* to = out + row * out_stride;
  for (int u = static_cast<int>(threadIdx.x); u < units; u += kThreads) {
    StoreUnit(LoadUnit(from + u * kUnit), to + u * kUnit);
  }
}

__global__ void __launch_bounds__(kThreads)
    GatherKernel(const float* in, int64_t in_stride, const int64_t* rows, int units, float* out,
                 int64_t out_stride) {
  LetNextStart();
  WaitForPrevious();
  const float* from = in + rows[blockIdx.x] * in_stride;
  float* to = out + static_cast<int64_t>(blockIdx.x) * out_stride;
  for (int u = static_cast<int>(threadIdx.x); u < units; u += kThreads) {
    StoreUnit(LoadUnit(from + u * kUnit), to + u * kUnit);
  }
}

template <RowTransform::Kind kind, typename In>
__global__ void __launch_bounds__(kThreads)
    TransformKernel(const __grid_constant__ RowSource source, __nv_bfloat16* out,
                    int64_t out_stride) {
  LetNextStart();
  PrefetchTransform(source);
  WaitForPrevious();
  const int64_t row = blockIdx.x;
  TransformRowsInBlock<kind, In, 1>(source, row, 1, out + row * out_stride, out_stride);
}

void CheckRows(const MatrixView& m) {
  constexpr int64_t kAlign = 16;
  FOX_CHECK(m.cols > 0 && m.cols % kUnit == 0);
  FOX_CHECK(reinterpret_cast<uintptr_t>(m.data) % kAlign == 0);
  FOX_CHECK(m.row_stride * static_cast<int64_t>(SizeOf(m.dtype)) % kAlign == 0);
}

template <typename T>
cudaError_t LaunchEmbed(const BatchView& batch, const MatrixView& table, const MatrixView& out,
                        cudaStream_t stream) {
  return Launch(EmbedKernel<T>, dim3(static_cast<unsigned>(batch.num_rows)), dim3(kThreads), 0,
                stream, batch, static_cast<const T*>(table.data), table.row_stride, table.rows,
                static_cast<int>(out.cols / kUnit), static_cast<float*>(out.data), out.row_stride);
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
                static_cast<int>(out.cols / kUnit), static_cast<float*>(out.data), out.row_stride);
}

cudaError_t TransformRows(const MatrixView& in, const RowTransform& transform,
                          const MatrixView& out, cudaStream_t stream) {
  const RowSource source = SourceOf(in, transform);
  FOX_CHECK(out.dtype == DType::kBF16 && out.rows == in.rows && out.cols == source.out_cols);
  CheckRows(out);
  return DispatchTransform(transform.kind, in.dtype, [&]<RowTransform::Kind kind, typename In>() {
    return Launch(TransformKernel<kind, In>, dim3(static_cast<unsigned>(in.rows)), dim3(kThreads),
                  0, stream, source, static_cast<__nv_bfloat16*>(out.data), out.row_stride);
  });
}

}  // namespace fox::cuda
