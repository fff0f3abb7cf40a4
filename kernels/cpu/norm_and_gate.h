// Norms, caps and gates of a row; out may be x.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/core/activation.h"
#include "kernels/cpu/isa/isa_kernels.h"

namespace fox {

// out = x / sqrt(mean(x^2) + eps) * weight.
inline void NormRow(const float* x, const float* weight, int64_t count, double eps, float* out) {
  SelectIsaKernels().rms_norm(x, weight, count, static_cast<float>(eps), out);
}

inline void NormRow(const double* x, const double* weight, int64_t count, double eps, double* out) {
  double square = 0;
  for (int64_t i = 0; i < count; ++i) square += x[i] * x[i];
  const double scale = 1 / std::sqrt(square / static_cast<double>(count) + eps);
  for (int64_t i = 0; i < count; ++i) out[i] = x[i] * scale * weight[i];
}

// x *= min(1, cap / ||x||).
template <typename T>
void CapNorm(T* x, int64_t count, float cap) {
  const auto wide = [&](int64_t i) { return static_cast<double>(x[i]); };
  double square = 0;
  for (int64_t i = 0; i < count; ++i) square += wide(i) * wide(i);
  const double scale = static_cast<double>(cap) / std::sqrt(square);
  for (int64_t i = 0; scale < 1 && i < count; ++i) x[i] = static_cast<T>(scale * wide(i));
}

// out = act(gate) * x.
inline void GatedRow(const float* gate, const float* x, int64_t count, Activation act, float* out) {
  const IsaKernels& isa = SelectIsaKernels();
  (act == Activation::kSilu ? isa.silu_mul : isa.sigmoid_mul)(gate, x, count, out);
}

inline void GatedRow(const double* gate, const double* x, int64_t count, Activation act,
                     double* out) {
  for (int64_t i = 0; i < count; ++i) {
    const double e = std::exp(-std::abs(gate[i]));
    const double sigmoid = (gate[i] < 0 ? e : 1.0) / (1.0 + e);
    out[i] = (act == Activation::kSilu ? gate[i] : 1.0) * sigmoid * x[i];
  }
}

}  // namespace fox
