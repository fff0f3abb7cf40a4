// Shared memory of small_batch_gemm.cu's blocks, and how the sums of eight warps become outputs:
// stored in shared memory, added as a tree, scaled, gated and stored. Every operation is one of
// cluster_gemm_epilogue.cuh's, in its order.
#pragma once

#include <cuda_bf16.h>

#include "kernels/cuda/linear/small_batch_input.cuh"
#include "kernels/cuda/linear/small_batch_tiles.cuh"
#include "kernels/cuda/primitives/ring.cuh"
#include "kernels/cuda/primitives/warp.cuh"
#include "kernels/cuda/ptx/global_memory.cuh"
#include "kernels/cuda/ptx/mbarrier.cuh"
#include "kernels/cuda/ptx/named_barrier.cuh"

namespace fox::cuda::small_batch {

// Kernels are compiled for at most 1, 4 and 8 rows.
__host__ __device__ constexpr int KernelRows(int rows) { return rows == 1 ? 1 : rows <= 4 ? 4 : 8; }
// Groups of 16 rows of W in a set at most, so that no thread has two outputs. In bf16 one: there
// reading W takes longer than more groups would save.
template <bool kFp8>
__host__ __device__ constexpr int SetGroups(int rows) {
  return !kFp8 ? 1 : rows <= 4 ? kMaxGroups : kMaxGroups / 2;
}
template <bool kFp8>
__host__ __device__ constexpr int SetRows(int rows) {
  return SetGroups<kFp8>(rows) * kGroupRows;
}
static_assert(SetRows<true>(4) * 4 <= kConsumers && SetRows<true>(8) * 8 <= kConsumers);
// Floats of a set's partial sums.
template <bool kFp8>
__host__ __device__ constexpr int PartialFloats(int rows) {
  return kConsumerWarps * KernelRows(rows) * SetRows<kFp8>(rows);
}
inline constexpr int kMaxStages = 16;
inline constexpr int kBarrierBytes = 2 * kMaxStages * static_cast<int>(sizeof(Mbarrier));

// Shared memory: [stages] tiles, input rows, partial sums [2][warps][KernelRows][SetRows],
// barriers, the rows' sums of squares and scales.

// A row and 16 bytes, so that ldmatrix finds eight rows in different banks.
__host__ __device__ constexpr int InputStride(int in) { return in * 2 + 16; }
// The input of a step's columns past the end is loaded, too.
__host__ __device__ constexpr int InputBytes(int rows, int in) {
  return rows * InputStride(in) + (kStepCols - 1 - (in - 1) % kStepCols) * 2;
}
template <bool kFp8>
__host__ __device__ constexpr int FixedBytes(int rows, int in) {
  return InputBytes(rows, in) + kBarrierBytes +
         (2 * PartialFloats<kFp8>(rows) + rows * NormFloats(in)) * static_cast<int>(sizeof(float));
}
// TileReader loads whole groups, which may reach past the last tile's rows into the memory behind
// the ring.
static_assert(FixedBytes<false>(1, 8) >= (kGroupRows - 1) * kMapLineBytes);

struct SharedLayout {
  Ring tiles;
  unsigned char* input;
  float* partial;
  float* norms;  // [rows, NormFloats]
};

template <int kRows, bool kFp8>
__device__ __forceinline__ SharedLayout LayoutOf(unsigned char* shared,
                                                 const SmallBatchGemmArguments& a) {
  SharedLayout layout;
  layout.input = shared + a.stages * a.tile_bytes;
  layout.partial = reinterpret_cast<float*>(layout.input + InputBytes(a.rows, a.in));
  auto* const full = reinterpret_cast<Mbarrier*>(layout.partial + 2 * PartialFloats<kFp8>(kRows));
  layout.tiles = {shared, a.tile_bytes, a.stages, full, full + kMaxStages};
  layout.norms = reinterpret_cast<float*>(full + 2 * kMaxStages);
  return layout;
}

// A multiplying warp's part of a block's outputs, one set after another. The partial sums lie in
// one of two buffers in turn, so that one barrier for them suffices: a buffer is written again only
// after the next set's barrier. Each thread has an output of a set or none. The output's addends
// (previous value, bias) are read long before they are used; absent ones are zeros, which turns -0
// into 0 as in cluster_gemm.cu.
template <bool kNorm, int kRows, bool kFp8>
class Outputs {
 public:
  __device__ __forceinline__ Outputs(const SmallBatchGemmArguments& a, const SharedLayout& layout,
                                     int first, int last)
      : a_(a), layout_(layout), last_(last), next_(first) {
    const int m = static_cast<int>(threadIdx.x) % kSetRows;
    const int output = a.gated ? m / kGroupRows * kHalfRows + m % kHalfRows : m;
    const bool has = BatchRow() < a.rows && output < a.set_rows && !OfSecondHalf();
    row_ = (has ? first : last) + output;
    scale_row_ = first + output;
    const int row = first + static_cast<int>(threadIdx.x);
    if (a.bias != nullptr && row < last) Prefetch(a.bias + row);
    if (kFp8 && row < last) {
      Prefetch(a.scales + row);
      if (a.gated) Prefetch(a.scales + a.out + row);
    }
    LoadConstants();
  }

  // Steps of all remaining sets.
  __device__ __forceinline__ int StepsLeft() const {
    return (last_ - next_ + a_.set_rows - 1) / a_.set_rows * Steps(a_);
  }

  // REQUIRES: the previous kernel has ended.
  __device__ __forceinline__ void LoadPrevious() {
    previous_ = a_.accumulate && row_ < last_ ? a_.y_f32[At()] : 0;
  }

  // The warp's sums of a group, as MultiplyAdd leaves them.
  __device__ __forceinline__ void Put(int group, const float (&c)[4]) {
    const int lane = Lane(), n = lane % 4 * 2;
    float* const mine = layout_.partial + buffer_ * PartialFloats<kFp8>(kRows) +
                        (Warp() * kRows + n) * kSetRows + group * kGroupRows + lane / 4;
    if (n < kRows) {
      mine[0] = c[0];
      mine[kGroupRows / 2] = c[2];
    }
    if (n + 1 < kRows) {
      mine[kSetRows] = c[1];
      mine[kSetRows + kGroupRows / 2] = c[3];
    }
  }

  // After Put of all the set's groups: stores the set's outputs and goes on to the next set. True
  // if there is one. Without `store` nothing changes.
  __device__ __forceinline__ bool Store(bool store = true) {
    SyncThreads<kConsumers>();
    StoreValue(store);
    if (!store) return false;
    next_ += a_.set_rows;
    row_ += a_.set_rows;
    scale_row_ += a_.set_rows;
    LoadConstants();
    LoadPrevious();
    buffer_ ^= 1;
    return next_ < last_;
  }

 private:
  static constexpr int kSetRows = SetRows<kFp8>(kRows);

  __device__ __forceinline__ static int BatchRow() {
    return static_cast<int>(threadIdx.x) / kSetRows;
  }
  // True if the product is gated and the thread's sum belongs to W's second half.
  __device__ __forceinline__ bool OfSecondHalf() const {
    return a_.gated && threadIdx.x % kGroupRows >= kHalfRows;
  }
  __device__ __forceinline__ void LoadConstants() {
    bias_ = a_.bias != nullptr && row_ < last_ ? a_.bias[row_] : 0;
    if (!kFp8) return;
    scale_ = scale_row_ < last_ ? a_.scales[scale_row_ + (OfSecondHalf() ? a_.out : 0)] : 0;
  }
  __device__ __forceinline__ int At() const {
    return BatchRow() * static_cast<int>(a_.y_stride) + row_;
  }
  __device__ __forceinline__ void StoreValue(bool store) const {
    constexpr int kValues = PartialFloats<kFp8>(kRows) / kConsumerWarps;
    // Where the product is gated, all of a warp take part.
    if (a_.gated ? Warp() * kWarp >= a_.rows * kSetRows : row_ >= last_) return;
    const float* const partial = layout_.partial + buffer_ * PartialFloats<kFp8>(kRows);
    float sum[kConsumerWarps];
#pragma unroll
    for (int w = 0; w < kConsumerWarps; ++w) sum[w] = partial[w * kValues + threadIdx.x];
#pragma unroll
    for (int step = 1; step < kConsumerWarps; step *= 2) {
#pragma unroll
      for (int w = 0; w < kConsumerWarps; w += 2 * step) sum[w] = __fadd_rn(sum[w], sum[w + step]);
    }
    float total = kFp8 ? __fmul_rn(sum[0], scale_) : sum[0];
    if (kNorm) {
      const int floats = NormFloats(a_.in);
      total = __fmul_rn(total, layout_.norms[min(BatchRow(), a_.rows - 1) * floats + floats - 1]);
    }
    float value = __fadd_rn(previous_, __fadd_rn(total, bias_));
    if (a_.gated) {
      value = __bfloat162float(__float2bfloat16_rn(value));
      value = Gated(FromLaneXor(value, kHalfRows), value, a_.act);
      if (row_ >= last_) return;
    }
    if (!store) return;
    if (a_.y_f32 != nullptr) {
      a_.y_f32[At()] = value;
    } else {
      a_.y_bf16[At()] = __float2bfloat16_rn(value);
    }
  }

  const SmallBatchGemmArguments& a_;
  const SharedLayout& layout_;
  const int last_;
  int next_;  // first row of W of the set
  int buffer_ = 0;
  int row_;  // of the thread's output; `last` or behind it where it has none
  int scale_row_;
  float bias_ = 0, previous_ = 0, scale_ = 0;
};

}  // namespace fox::cuda::small_batch
