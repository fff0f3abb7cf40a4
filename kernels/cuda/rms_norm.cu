// RMS normalisation on the GPU: one block a row, two passes over the row (the second from cache).
// The reduction tree depends on the row's width alone, so a row gives the same bits in any batch.
#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/core/check.h"
#include "kernels/cuda/rms_norm.h"

namespace fox::cuda {
namespace {

constexpr int kWarp = 32;
constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;

__device__ float Load(const float* p) { return *p; }
__device__ float Load(const __nv_bfloat16* p) { return __bfloat162float(*p); }
__device__ void Store(float value, float* p) { *p = value; }
__device__ void Store(float value, __nv_bfloat16* p) { *p = __float2bfloat16_rn(value); }

__device__ float WarpSum(float value) {
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    value += __shfl_xor_sync(0xffffffffu, value, offset);
  }
  return value;
}

// The sum over the block's threads, in every thread.
__device__ float BlockSum(float value) {
  __shared__ float partial[kWarps];
  const float warp_sum = WarpSum(value);
  if (threadIdx.x % kWarp == 0) partial[threadIdx.x / kWarp] = warp_sum;
  __syncthreads();
  float sum = 0.0f;
  for (float part : partial) sum += part;
  return sum;
}

template <typename In, typename Out>
__global__ void __launch_bounds__(kThreads)
    RmsNormKernel(const In* in, int64_t in_stride, const float* weight, float eps, int64_t cols,
                  Out* out, int64_t out_stride) {
  const In* in_row = in + static_cast<int64_t>(blockIdx.x) * in_stride;
  Out* out_row = out + static_cast<int64_t>(blockIdx.x) * out_stride;
  float squares = 0.0f;
  for (int64_t c = threadIdx.x; c < cols; c += kThreads) {
    const float x = Load(in_row + c);
    squares += x * x;
  }
  const float scale = rsqrtf(BlockSum(squares) / static_cast<float>(cols) + eps);
  for (int64_t c = threadIdx.x; c < cols; c += kThreads) {
    Store(Load(in_row + c) * scale * weight[c], out_row + c);
  }
}

template <typename In, typename Out>
cudaError_t Launch(const MatrixView& in, const float* weight, double eps, const MatrixView& out,
                   cudaStream_t stream) {
  RmsNormKernel<In, Out><<<static_cast<unsigned>(in.rows), kThreads, 0, stream>>>(
      static_cast<const In*>(in.data), in.row_stride, weight, static_cast<float>(eps), in.cols,
      static_cast<Out*>(out.data), out.row_stride);
  return cudaGetLastError();
}

template <typename In>
cudaError_t LaunchFor(const MatrixView& in, const float* weight, double eps, const MatrixView& out,
                      cudaStream_t stream) {
  return out.dtype == DType::kBF16 ? Launch<In, __nv_bfloat16>(in, weight, eps, out, stream)
                                   : Launch<In, float>(in, weight, eps, out, stream);
}

bool IsSupported(DType dtype) { return dtype == DType::kF32 || dtype == DType::kBF16; }

}  // namespace

cudaError_t RmsNormRows(const MatrixView& in, const float* weight, double eps,
                        const MatrixView& out, cudaStream_t stream) {
  FOX_CHECK(in.rows == out.rows && in.cols == out.cols && in.cols > 0);
  FOX_CHECK(IsSupported(in.dtype) && IsSupported(out.dtype));
  if (in.rows == 0) return cudaSuccess;
  return in.dtype == DType::kBF16 ? LaunchFor<__nv_bfloat16>(in, weight, eps, out, stream)
                                  : LaunchFor<float>(in, weight, eps, out, stream);
}

}  // namespace fox::cuda
