// A full page's addend to the running sums (AccumulatePage of kernels/cpu/append.cc), by a warp.
// float32 inside a portion of a page, where weights are at most 1; float64 beyond.
#pragma once

#include "kernels/cuda/append/append.h"
#include "kernels/cuda/append/row.cuh"
#include "kernels/cuda/primitives/page_part.cuh"

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
      dot = WarpSum<kLanes>(dot);
      square += dot * dot;
    }
  } else if (bound.diagonal != nullptr) {
    const Float8 a = LoadVec8(bound.diagonal + first);
#pragma unroll
    for (int i = 0; i < kVec8; ++i) square += (a.x[i] * key.x[i]) * (a.x[i] * key.x[i]);
    square = WarpSum<kLanes>(square);
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
  return static_cast<float>(bound.scale) * sqrtf(square) + WarpSum<kLanes>(rest);
}

__device__ __forceinline__ double* RecordOf(const StepSchedule& schedule, const PagedKv& kv,
                                            int64_t block, int q_head) {
  return schedule.page_sums +
         (block * kv.shape.q_heads + q_head) * (kv.shape.head_dim + int{kRecordHeader});
}

// Accurate to 2^-22, which the bounds' own slack pays for. A NaN stays.
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
      return scale_ * SquareRoot(WarpSum<kRowLanes<kHeadDim>>(SquareOf(key)));
    }
  }
  // a(k) of several keys, one per lane as SpreadSums distributes them, from the lanes' partial sums
  // over their dimensions.
  __device__ __forceinline__ float PartOf(const Float8& key) const {
    return kGeneralBound ? (*this)(key, 1.0f) : SquareOf(key);
  }
  template <int kKeys>
  __device__ __forceinline__ float OfParts(float (&parts)[kKeys]) const {
    constexpr int kLanes = kRowLanes<kHeadDim>;
    if constexpr (!kGeneralBound) return scale_ * SquareRoot(SpreadSums<kLanes>(parts));
    float own = parts[0];
#pragma unroll
    for (int i = 1; i < kKeys; ++i) own = sub_ / (kLanes / kKeys) == i ? parts[i] : own;
    return own;
  }

 private:
  __device__ __forceinline__ float SquareOf(const Float8& key) const {
    float square = 0;
#pragma unroll
    for (int i = 0; i < kVec8; ++i) {
      const float x = diagonal_.x[i] * key.x[i];
      square = fmaf(x, x, square);
    }
    return square;
  }

  const QueryBound& bound_;
  const int head_, sub_;
  const float scale_;
  Float8 diagonal_;
};

// Keys that one warp sums in float32; float64 beyond. Every kernel sums a page in portions of this
// size, in this order, so its sums do not depend on how its rows were divided into steps.
inline constexpr int kPortionKeys = 16;
inline constexpr int kPortions = kPageTokens / kPortionKeys;

// Pays for N's float32 sums, as a share of the largest ||q|| ||k|| / sqrt(d), and is added to beta:
// at most nine additions of a portion's keys and five later roundings, 2^-24 each (2^-20 are 16),
// relative to the sum of the terms' norms, because the keys may cancel.
inline constexpr double kKeySumRounding = 0x1p-20;

// Sums over a portion's keys, relative to the page's end. All lanes hold the same sums, except that
// `keys` has this lane's dimensions.
struct KeySums {
  float count = 0;  // sum of exp(decay_j)
  Float8 keys{};    // sum of exp(decay_j) k_j
};

// Keys [first, first + kPortionKeys) of a page: `keys` is PageKeys or has its interface. decay [64]
// is c_e - c_j; `term` [64] gets a_j + decay_j.
template <int kHeadDim, bool kGeneralBound, typename Keys>
__device__ __forceinline__ KeySums SumKeys(const HeadBound<kHeadDim, kGeneralBound>& bound,
                                           const Keys& keys, const float* decay, int first,
                                           float* term) {
  constexpr int kLanes = kRowLanes<kHeadDim>, kRows = kWarp / kLanes;
  constexpr int kBatch = kLanes < 8 ? kLanes / 2 : 4;  // keys of a lane's row at a time
  static_assert(kPortionKeys % (kBatch * kRows) == 0);
  const int sub = Lane() % kLanes;
  const int own = sub / (kLanes / kBatch);  // which of them is the lane's alone, as to its sums
  KeySums sums;
#pragma unroll 1
  for (int begin = first; begin < first + kPortionKeys; begin += kBatch * kRows) {
    const int place = begin + Lane() / kLanes;
    const float own_decay = decay[place + own * kRows], own_weight = __expf(own_decay);
    float parts[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const Float8 key = Widen(keys.Bits(place + i * kRows, sub * kVec8));
      const float weight = FromLane(own_weight, i * (kLanes / kBatch), kLanes);
#pragma unroll
      for (int m = 0; m < kVec8; ++m) {
        sums.keys.x[m] = fmaf(weight, key.x[m], sums.keys.x[m]);
      }
      sums.count += weight;
      parts[i] = bound.PartOf(key);
    }
    const float logit = bound.OfParts(parts);
    if (sub % (kLanes / kBatch) == 0) term[place + own * kRows] = __fadd_rn(logit, own_decay);
  }
#pragma unroll
  for (int i = 0; i < kVec8; ++i) sums.keys.x[i] = StridedSum<kLanes>(sums.keys.x[i]);
  sums.count = StridedSum<kLanes>(sums.count);
  return sums;
}

// E and H: of a page alone, or of it and all before it.
struct PageBounds {
  double log_mass_bound, log_denominator_bound;

  __device__ __forceinline__ static PageBounds OfNone() { return {-CUDART_INF, CUDART_INF}; }
};

// Bounds of a page alone, from the running state at its end. last: its last position; c: the
// cumulative log gate there; sum_bound(): gives the bound on -N, called only if it is needed.
template <typename SumBound>
__device__ __forceinline__ PageBounds BoundPage(const QueryBound& query_bound, AcpMode acp,
                                                int head, int64_t last, double c, double log_mass,
                                                double decay_sum, const SumBound& sum_bound) {
  const auto position = static_cast<double>(last);
  if (acp == AcpMode::kPaper) return {PaperLogMassBound(position, c), CUDART_INF};
  const double bound = static_cast<double>(sum_bound()) / decay_sum +
                       kKeySumRounding * MaxNormProduct(query_bound, head);
  return {CertifiedLogMassBound(log_mass, position, c, query_bound.max_logit_bound[head]),
          LogDenominatorBound(CUDART_INF, c, bound, decay_sum)};
}

__device__ __forceinline__ PageBounds BoundsAt(const PagedKv& kv, AcpMode acp, int64_t summary) {
  return {kv.log_mass_bound[summary],
          acp == AcpMode::kCertified ? kv.log_denominator_bound[summary] : CUDART_INF};
}

// Writes a page's summary: the extremes of its own bounds and of the bounds of all pages before it.
__device__ __forceinline__ void StoreBounds(const PagedKv& kv, AcpMode acp, int64_t summary,
                                            const PageBounds& own, const PageBounds& before) {
  kv.log_mass_bound[summary] = RisingLogMassBound(before.log_mass_bound, own.log_mass_bound);
  if (acp != AcpMode::kCertified) return;
  kv.log_denominator_bound[summary] = fmin(own.log_denominator_bound, before.log_denominator_bound);
}

// log sum exp of term [64], in all lanes of the warp.
__device__ __forceinline__ double LogSumExpOfPage(const float* term) {
  static_assert(kPageTokens == 2 * kWarp);
  const float a = term[Lane()], b = term[Lane() + kWarp], top = WarpMax(fmaxf(a, b));
  const float sum = WarpSum(__fadd_rn(expf(a - top), expf(b - top)));
  return static_cast<double>(top) + static_cast<double>(logf(sum));
}

}  // namespace fox::cuda
