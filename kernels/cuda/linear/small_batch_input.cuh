// How the input rows of small_batch_gemm.cu come into shared memory, by the first 256 threads of a
// block: as they are, or with a norm whose scale is deferred. A row's result does not depend on the
// rows beside it.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/cuda/primitives/norm_and_gate.cuh"
#include "kernels/cuda/primitives/vec8.cuh"
#include "kernels/cuda/primitives/warp.cuh"
#include "kernels/cuda/ptx/named_barrier.cuh"

namespace fox::cuda::small_batch {

inline constexpr int kInputThreads = 256;

// Rows are 16-byte aligned, cols a multiple of 8.
struct InputRows {
  const void* data;  // float32 with a norm, else bf16
  int64_t stride;    // elements
  int rows, cols;
  const float* norm_weight;  // [cols]
  float eps;
};

// Floats of a row's norm: its sums of squares, then the scale.
__host__ __device__ constexpr int NormFloats(int cols) { return NormSums(cols) + 1; }

// Both kinds of input are constructed before WaitOnDependencies() and compute all addresses then:
// behind the wait, the rows are one load away. out (16-byte aligned rows, out_stride elements
// apart): shared memory; the caller synchronises before it is read.
template <int kRows>
class CopiedInput {
 public:
  __device__ __forceinline__ CopiedInput(const InputRows& x, int out_stride)
      : x_(x), out_stride_(out_stride), total_(x.rows * (x.cols / kVec8)) {
    Find(0);
  }

  __device__ __forceinline__ void Bring(__nv_bfloat16* out, float*) {
    const auto* in = static_cast<const __nv_bfloat16*>(x_.data);
#pragma unroll 1
    for (int first = 0;;) {
      uint4 units[kBatch];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        if (first + i * kInputThreads >= total_) break;  // for the whole block
        units[i] = *reinterpret_cast<const uint4*>(in + from_[i]);
      }
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const int block_first = first + i * kInputThreads;
        if (block_first >= total_) break;  // for the whole block
        if (block_first + static_cast<int>(threadIdx.x) < total_) {
          *reinterpret_cast<uint4*>(out + to_[i]) = units[i];
        }
      }
      first += kBatch * kInputThreads;
      if (first >= total_) return;
      Find(first);
    }
  }

 private:
  // Units of 8 columns under way at a time, all loaded before the first is used. Past the last unit
  // it is loaded again, so that no branch within a warp makes the compiler wait for a load.
  static constexpr int kBatch = kRows > 1 ? 4 : 2;

  // The thread's units from `first` on: where they are and where they belong.
  __device__ __forceinline__ void Find(int first) {
    const int of_row = x_.cols / kVec8;
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int block_first = first + i * kInputThreads;
      const int at = min(block_first + static_cast<int>(threadIdx.x), total_ - 1);
      int row = 0;
#pragma unroll
      for (int r = 1; r < kRows; ++r) row += at >= r * of_row ? 1 : 0;
      const int column = (at - row * of_row) * kVec8;
      from_[i] = row * static_cast<int>(x_.stride) + column;
      to_[i] = row * out_stride_ + column;
    }
  }

  const InputRows& x_;
  const int out_stride_, total_;
  int from_[kBatch], to_[kBatch];
};

template <int kRows>
class NormedInput {
 public:
  __device__ __forceinline__ NormedInput(const InputRows& x, int out_stride)
      : x_(x),
        out_stride_(out_stride),
        first_(static_cast<const float*>(x.data) + threadIdx.x * kVec8) {
    const int thread = static_cast<int>(threadIdx.x);
    if (thread < x.cols / kVec8) weight_ = LoadVec8(x.norm_weight + thread * kVec8);
  }

  // Loads the rows into `out`. Contains a barrier; the scales are complete after the next one.
  // norms: [rows, NormFloats] in shared memory.
  __device__ __forceinline__ void Bring(__nv_bfloat16* out, float* norms) {
    constexpr int kSumUnits = kNormSumCols / kVec8;
    const int thread = static_cast<int>(threadIdx.x);
    const int units = x_.cols / kVec8, floats = NormFloats(x_.cols);
    const float* at = first_;
#pragma unroll 1
    for (int begin = 0; begin < units; begin += kInputThreads) {  // for the whole block
      const int u = begin + thread;
      const bool there = u < units;
#pragma unroll
      for (int first = 0; first < kRows; first += kTogether) {
        Float8 x[kTogether] = {};
#pragma unroll
        for (int i = 0; i < kTogether; ++i) {
          if (there && first + i < x_.rows) x[i] = LoadVec8(at + (first + i) * x_.stride);
        }
        Float8 weight = weight_;
        if (there && u != thread) weight = LoadVec8(x_.norm_weight + u * kVec8);
#pragma unroll
        for (int i = 0; i < kTogether; ++i) {
          const int r = first + i;
          if (r >= x_.rows) break;
          if (there) StoreVec8(Weighted(x[i], weight), out + r * out_stride_ + u * kVec8);
          const float sum = SumOf128(x[i]);
          if (there && u % kSumUnits == 0) norms[r * floats + u / kSumUnits] = sum;
        }
      }
      at += kInputThreads * kVec8;
    }
    SyncThreads<kInputThreads>();
    if (Warp() != kInputThreads / kWarp - 1 || Lane() >= x_.rows) return;
    float* const row = norms + Lane() * floats;
    row[floats - 1] = DeferredScale(row, x_.cols, x_.eps);
  }

 private:
  static constexpr int kTogether = kRows < 4 ? kRows : 4;  // as many as registers allow

  __device__ __forceinline__ static Float8 Weighted(Float8 x, const Float8& weight) {
#pragma unroll
    for (int i = 0; i < kVec8; ++i) x.x[i] = __fmul_rn(x.x[i], weight.x[i]);
    return x;
  }

  // Over the lanes that hold 128 columns, zeros past the row's end; in all of them.
  __device__ __forceinline__ static float SumOf128(const Float8& unit) {
    const auto& x = unit.x;
    float sum =
        __fadd_rn(SumOfSquares(x[0], x[1], x[2], x[3]), SumOfSquares(x[4], x[5], x[6], x[7]));
#pragma unroll
    for (int offset = 1; offset < kNormSumCols / kVec8; offset *= 2) {
      sum = __fadd_rn(sum, FromLaneXor(sum, offset));
    }
    return sum;
  }

  const InputRows& x_;
  const int out_stride_;
  const float* const first_;  // the thread's first unit of 8 columns, and its weights
  Float8 weight_{};
};

}  // namespace fox::cuda::small_batch
