// Embedding lookup and gathering of rows, 16 bytes a thread and load.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "kernels/core/check.h"
#include "kernels/cuda/linear/embed.h"
#include "kernels/cuda/primitives/vec8.cuh"
#include "kernels/cuda/ptx/dependent_launch.cuh"
#include "kernels/cuda/runtime/launch.h"

namespace fox::cuda {
namespace {

constexpr int kThreads = 256;
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

// Which row of a table a row looks up.
struct TokenIds {
  BatchView batch;
  int64_t vocabulary;

  __device__ int64_t operator()(int64_t row) const {
    int32_t id = batch.token_ids[row];
    if (id == kLastSampledToken) {
      const int32_t slot =
          batch.sampled_tokens == nullptr ? -1 : batch.slot[SequenceOf(batch, row)];
      id = slot < 0 ? 0 : batch.sampled_tokens[slot];
    }
    return min(max(static_cast<int64_t>(id), int64_t{0}), vocabulary - 1);
  }
};
struct RowIds {
  const int64_t* rows;
  __device__ int64_t operator()(int64_t row) const { return rows[row]; }
};

template <typename T, typename Ids>
__global__ void __launch_bounds__(kThreads)
    LookUpKernel(const __grid_constant__ Ids ids, const T* table, int64_t table_stride, int units,
                 float* out, int64_t out_stride) {
  TriggerDependents();
  WaitOnDependencies();
  const T* from = table + ids(blockIdx.x) * table_stride;
  float* to = out + static_cast<int64_t>(blockIdx.x) * out_stride;
  for (int u = static_cast<int>(threadIdx.x); u < units; u += kThreads) {
    StoreVec8(LoadVec8(from + u * kVec8), to + u * kVec8);
  }
}

void CheckRows(const MatrixView& m) {
  constexpr int64_t kAlign = 16;
  FOX_CHECK(m.cols > 0 && m.cols % kVec8 == 0);
  FOX_CHECK(reinterpret_cast<uintptr_t>(m.data) % kAlign == 0);
  FOX_CHECK(m.row_stride * static_cast<int64_t>(SizeOf(m.dtype)) % kAlign == 0);
}

template <typename T, typename Ids>
cudaError_t LookUp(const Ids& ids, const MatrixView& table, int64_t rows, const MatrixView& out,
                   cudaStream_t stream) {
  FOX_CHECK(out.dtype == DType::kF32 && out.cols == table.cols && out.rows >= rows);
  CheckRows(table);
  CheckRows(out);
  return Launch(LookUpKernel<T, Ids>, dim3(static_cast<unsigned>(rows)), dim3(kThreads), 0, stream,
                ids, static_cast<const T*>(table.data), table.row_stride,
                static_cast<int>(out.cols / kVec8), static_cast<float*>(out.data), out.row_stride);
}

}  // namespace

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
