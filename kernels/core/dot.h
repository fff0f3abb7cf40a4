// Dot: the product of two float64 vectors, in eight partial sums: one alone would wait for itself.
#pragma once

#include <cstdint>

namespace fox {

inline double Dot(const double* a, const double* b, int64_t count) {
  double part[8] = {};
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    for (int lane = 0; lane < 8; ++lane) part[lane] += a[i + lane] * b[i + lane];
  }
  for (; i < count; ++i) part[0] += a[i] * b[i];
  double sum = 0;
  for (double x : part) sum += x;
  return sum;
}

}  // namespace fox
