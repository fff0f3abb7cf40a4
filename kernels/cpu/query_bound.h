// Evaluates a QueryBound on one key, or on the mean key of the denominator's bound.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/op_params.h"

namespace fox {

// a(k) = scale * ||A k|| + linear_sign * linear.k + absolute.|k| (acp.md 2a, 5). `linear_sign` is 1
// for the largest logit a key can have, -1 for minus the smallest.
template <typename T>
double EvaluateBound(const QueryBound& bound, int head, int head_dim, const T* key,
                     double linear_sign) {
  const int64_t d = head_dim;
  double square = 0, rest = 0;
  if (bound.dense != nullptr) {
    const float* matrix = bound.dense + head * d * d;
    for (int64_t r = 0; r < d; ++r) {
      double dot = 0;
      for (int64_t m = 0; m < d; ++m) {
        dot += static_cast<double>(matrix[r * d + m]) * static_cast<double>(key[m]);
      }
      square += dot * dot;
    }
  } else if (bound.diagonal != nullptr) {
    for (int64_t m = 0; m < d; ++m) {
      const double x =
          static_cast<double>(bound.diagonal[head * d + m]) * static_cast<double>(key[m]);
      square += x * x;
    }
  }
  for (int64_t m = 0; bound.linear != nullptr && m < d; ++m) {
    rest +=
        linear_sign * static_cast<double>(bound.linear[head * d + m]) * static_cast<double>(key[m]);
  }
  for (int64_t m = 0; bound.absolute != nullptr && m < d; ++m) {
    rest +=
        static_cast<double>(bound.absolute[head * d + m]) * std::abs(static_cast<double>(key[m]));
  }
  return bound.scale * std::sqrt(square) + rest;
}

}  // namespace fox
