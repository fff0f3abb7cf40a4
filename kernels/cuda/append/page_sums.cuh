// What a full page adds to the running sums (AccumulatePage of kernels/cpu/append.cc): a warp's
// share of it. float32 inside a page, where weights are at most 1 and 64 terms meet; float64 over
// pages.
#pragma once

#include "kernels/cuda/append/kernels.h"
#include "kernels/cuda/append/row.cuh"

namespace fox::cuda {

// a(k) of a key spread over the lanes of a row, in all of them (kernels/cpu/query_bound.h). All
// kinds of bound.
template <int kHeadDim>
__device__ __forceinline__ float GeneralBound(const QueryBound& bound, int head, const Float8& key,
                                              int sub, float linear_sign) {
  constexpr int kLanes = kRowLanes<kHeadDim>;
  const int64_t first = static_cast<int64_t>(head) * kHeadDim + sub * kVec8;
  float square = 0, rest = 0;
  if (bound.dense != nullptr) {
    const float* column =
        bound.dense + static_cast<int64_t>(head) * kHeadDim * kHeadDim + sub * kVec8;
#pragma unroll 4
    for (int r = 0; r < kHeadDim; ++r) {
      const Float8 a = LoadVec8(column + r * kHeadDim);
      float dot = 0;
#pragma unroll
      for (int i = 0; i < kVec8; ++i) dot += a.x[i] * key.x[i];
      dot = RowSum<kLanes>(dot);
      square += dot * dot;
    }
  } else if (bound.diagonal != nullptr) {
    const Float8 a = LoadVec8(bound.diagonal + first);
#pragma unroll
    for (int i = 0; i < kVec8; ++i) square += (a.x[i] * key.x[i]) * (a.x[i] * key.x[i]);
    square = RowSum<kLanes>(square);
  }
  if (bound.linear != nullptr) {
    const Float8 a = LoadVec8(bound.linear + first);
#pragma unroll
    for (int i = 0; i < kVec8; ++i) rest += linear_sign * a.x[i] * key.x[i];
  }
  if (bound.absolute != nullptr) {
    const Float8 a = LoadVec8(bound.absolute + first);
#pragma unroll
    for (int i = 0; i < kVec8; ++i) rest += a.x[i] * fabsf(key.x[i]);
  }
  return static_cast<float>(bound.scale) * sqrtf(square) + RowSum<kLanes>(rest);
}

__device__ __forceinline__ double* RecordOf(const StepSchedule& schedule, const PagedKv& kv,
                                            int64_t block, int q_head) {
  return schedule.page_sums +
         (block * kv.shape.q_heads + q_head) * (kv.shape.head_dim + int{kRecordHeader});
}

// Whether a bound is || diagonal * k || alone, as QK-norm gives it.
inline bool IsDiagonal(const QueryBound& bound) {
  return bound.diagonal != nullptr && bound.dense == nullptr && bound.linear == nullptr &&
         bound.absolute == nullptr;
}

// Good to 2^-22, which the bounds' own slack pays for. A NaN stays.
__device__ __forceinline__ float SquareRoot(float x) { return x == 0 ? 0 : x * rsqrtf(x); }

// The bound of a head; kGeneralBound: any kind, else a diagonal one, which is kept in registers.
template <int kHeadDim, bool kGeneralBound>
class HeadBound {
 public:
  __device__ HeadBound(const QueryBound& bound, int head, int sub)
      : bound_(bound), head_(head), sub_(sub), scale_(static_cast<float>(bound.scale)) {
    if constexpr (!kGeneralBound) {
      diagonal_ = LoadVec8(bound.diagonal + static_cast<int64_t>(head) * kHeadDim + sub * kVec8);
    }
  }
  __device__ __forceinline__ float operator()(const Float8& key, float linear_sign) const {
    if constexpr (kGeneralBound) {
      return GeneralBound<kHeadDim>(bound_, head_, key, sub_, linear_sign);
    } else {
      float square = 0;
#pragma unroll
      for (int i = 0; i < kVec8; ++i) {
        const float x = diagonal_.x[i] * key.x[i];
        square += x * x;
      }
      return scale_ * SquareRoot(RowSum<kRowLanes<kHeadDim>>(square));
    }
  }

 private:
  const QueryBound& bound_;
  const int head_, sub_;
  const float scale_;
  Float8 diagonal_;
};

// Sums over a warp's keys, relative to the page's end. The same in all lanes but for `keys`, which
// is of this lane's dimensions.
struct KeySums {
  float count = 0;       // sum of exp(decay_j)
  Float8 keys{};         // sum of exp(decay_j) k_j
  float max_square = 0;  // max ||k_j||^2
};

// Keys [first, first + count) of a page, [64, head_dim]. decay [64] is c_e - c_j; `term` [64] gets
// a_j + decay_j. `count` is a multiple of the rows a warp holds.
template <int kHeadDim, bool kGeneralBound>
__device__ __forceinline__ KeySums SumKeys(const HeadBound<kHeadDim, kGeneralBound>& bound,
                                           const __nv_bfloat16* keys, const float* decay, int first,
                                           int count, float* term) {
  constexpr int kLanes = kRowLanes<kHeadDim>;
  const int lane = static_cast<int>(threadIdx.x) % kWarp, sub = lane % kLanes;
  KeySums sums;
#pragma unroll 2
  for (int j = first + lane / kLanes; j < first + count; j += kWarp / kLanes) {
    const Float8 key = LoadVec8(keys + j * kHeadDim + sub * kVec8);
    const float weight = __expf(decay[j]);
    float square = 0;
#pragma unroll
    for (int i = 0; i < kVec8; ++i) {
      sums.keys.x[i] += weight * key.x[i];
      square += key.x[i] * key.x[i];
    }
    sums.count += weight;
    sums.max_square = fmaxf(sums.max_square, RowSum<kLanes>(square));
    const float logit = bound(key, 1.0f);
    if (sub == 0) term[j] = logit + decay[j];
  }
#pragma unroll
  for (int offset = kLanes; offset < kWarp; offset *= 2) {
#pragma unroll
    for (int i = 0; i < kVec8; ++i) {
      sums.keys.x[i] += __shfl_xor_sync(kAllLanes, sums.keys.x[i], offset);
    }
    sums.count += __shfl_xor_sync(kAllLanes, sums.count, offset);
    sums.max_square = fmaxf(sums.max_square, __shfl_xor_sync(kAllLanes, sums.max_square, offset));
  }
  return sums;
}

// log sum exp of term [64], in all lanes of the warp.
__device__ __forceinline__ double LogSumExpOfPage(const float* term) {
  static_assert(kPageTokens == 2 * kWarp);
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const float a = term[lane], b = term[lane + kWarp];
  float top = fmaxf(a, b);
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, offset));
  }
  const float sum = RowSum<kWarp>(expf(a - top) + expf(b - top));
  return static_cast<double>(top) + static_cast<double>(logf(sum));
}

}  // namespace fox::cuda
