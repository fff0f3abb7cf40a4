// One row's RMS norm, out = x / sqrt(mean(x^2) + eps) * weight; out may be x.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/cpu/isa/isa_kernels.h"

namespace fox {

inline void NormRow(const float* x, const float* weight, int64_t count, double eps, float* out) {
  SelectIsaKernels().rms_norm(x, weight, count, static_cast<float>(eps), out);
}

inline void NormRow(const double* x, const double* weight, int64_t count, double eps, double* out) {
  double square = 0;
  for (int64_t i = 0; i < count; ++i) square += x[i] * x[i];
  const double scale = 1 / std::sqrt(square / static_cast<double>(count) + eps);
  for (int64_t i = 0; i < count; ++i) out[i] = x[i] * scale * weight[i];
}

}  // namespace fox
