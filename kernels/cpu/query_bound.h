// Evaluates a QueryBound on keys, or on the mean key of the denominator's bound.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/core/check.h"
#include "kernels/interface/attention_params.h"

namespace fox {

inline constexpr int kMaxBoundKeys = 64;

// a(k) = scale * ||A k|| + linear_sign * linear.k + absolute.|k| (acp.md 2a, 5) of `count` keys at
// once, at most kMaxBoundKeys; keys [head_dim, count], out [count]. `linear_sign` is 1 for the
// largest logit a key can have, -1 for minus the smallest.
template <typename T>
void EvaluateBounds(const QueryBound& bound, int head, int head_dim, const T* keys, int count,
                    double linear_sign, double* out) {
  FOX_CHECK(count > 0 && count <= kMaxBoundKeys);
  const int64_t d = head_dim;
  double square[kMaxBoundKeys] = {}, rest[kMaxBoundKeys] = {};
  for (int64_t r = 0; bound.dense != nullptr && r < d; ++r) {
    const float* row = bound.dense + (head * d + r) * d;
    double dot[kMaxBoundKeys] = {};
    for (int64_t m = 0; m < d; ++m) {
      const double a = static_cast<double>(row[m]);
      for (int j = 0; j < count; ++j) dot[j] += a * static_cast<double>(keys[m * count + j]);
    }
    for (int j = 0; j < count; ++j) square[j] += dot[j] * dot[j];
  }
  for (int64_t m = 0; m < d; ++m) {
    const T* key = keys + m * count;
    if (bound.dense == nullptr && bound.diagonal != nullptr) {
      const double a = static_cast<double>(bound.diagonal[head * d + m]);
      for (int j = 0; j < count; ++j) {
        const double x = a * static_cast<double>(key[j]);
        square[j] += x * x;
      }
    }
    if (bound.linear != nullptr) {
      const double a = linear_sign * static_cast<double>(bound.linear[head * d + m]);
      for (int j = 0; j < count; ++j) rest[j] += a * static_cast<double>(key[j]);
    }
    if (bound.absolute != nullptr) {
      const double a = static_cast<double>(bound.absolute[head * d + m]);
      for (int j = 0; j < count; ++j) rest[j] += a * std::abs(static_cast<double>(key[j]));
    }
  }
  for (int j = 0; j < count; ++j) out[j] = bound.scale * std::sqrt(square[j]) + rest[j];
}

// a(k) of one key [head_dim], as above.
template <typename T>
double EvaluateBound(const QueryBound& bound, int head, int head_dim, const T* key,
                     double linear_sign) {
  double value;
  EvaluateBounds(bound, head, head_dim, key, 1, linear_sign, &value);
  return value;
}

}  // namespace fox
