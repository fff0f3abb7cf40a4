// One row under its gate, out = act(gate) * x; out may be x.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/core/activation.h"
#include "kernels/cpu/isa/isa_kernels.h"

namespace fox {

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
