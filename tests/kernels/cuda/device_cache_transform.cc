// The output norm and gate of DeviceCache: what the kernels are given, and what the oracle makes of
// it in float64, with the error that a correct kernel may make.
#include <algorithm>
#include <cmath>

#include "kernels/core/dtype.h"
#include "tests/kernels/cuda/device_cache.h"

namespace fox::cuda::testing {
namespace {

constexpr double kEps = 1e-5;

}  // namespace

// Columns beside the gate's are poison, as are rows of padding.
void DeviceCache::MakeOutputTransform() {
  const int64_t width = int64_t{options_.q_heads} * options_.head_dim;
  const int64_t stride = width + 24, column = 8;
  std::normal_distribution<float> normal;
  params_.transform.eps = kEps;
  params_.transform.act = options_.gate_act;
  if (options_.output_norm) {
    for (int64_t i = 0; i < width; ++i) output_norm_.push_back(1 + 0.15f * normal(rng_));
    output_norm_array_ = DeviceArray<float>(output_norm_);
    params_.transform.norm = output_norm_array_.data();
  }
  if (!options_.output_gate) return;
  std::vector<uint16_t> matrix(static_cast<size_t>(num_rows_ * stride), kPoisonBits);
  output_gate_.resize(static_cast<size_t>(num_rows_ * width));
  for (int s = 0; s < num_seqs(); ++s) {
    if (seq(s).slot < 0) continue;
    for (int64_t r = row_begin_[static_cast<size_t>(s)]; r < row_begin_[static_cast<size_t>(s) + 1];
         ++r) {
      for (int64_t i = 0; i < width; ++i) {
        const BFloat16 gate(2 * normal(rng_));
        matrix[static_cast<size_t>(r * stride + column + i)] = gate.bits;
        output_gate_[static_cast<size_t>(r * width + i)] = static_cast<float>(gate);
      }
    }
  }
  output_gate_array_ = DeviceArray<uint16_t>(matrix);
  params_.transform.gate = {output_gate_array_.data() + column, DType::kBF16, num_rows_, width,
                            stride};
}

// To first order an output moves with the others by the norm's factor, whose relative error is
// that of half the mean square; the norm and the sigmoid add some roundings of float32 and of
// approximate functions.
void DeviceCache::TransformExact(int64_t row, int q_head, std::vector<double>* out,
                                 std::vector<double>* error) const {
  constexpr double kRounding = 0x1p-19;
  const size_t d = out->size(), first = static_cast<size_t>(q_head) * d;
  if (options_.output_norm) {
    double square = 0, moved = 0;
    for (size_t m = 0; m < d; ++m) {
      square += (*out)[m] * (*out)[m];
      moved += std::abs((*out)[m]) * (*error)[m];
    }
    const double mean = square / static_cast<double>(d) + kEps, scale = 1 / std::sqrt(mean);
    const double relative = moved / static_cast<double>(d) / mean + kRounding;
    for (size_t m = 0; m < d; ++m) {
      const double weight = static_cast<double>(output_norm_[first + m]) * scale;
      (*error)[m] = std::abs(weight) * ((*error)[m] + std::abs((*out)[m]) * relative);
      (*out)[m] *= weight;
    }
  }
  if (!options_.output_gate) return;
  const size_t at = static_cast<size_t>(row) * static_cast<size_t>(options_.q_heads) * d + first;
  for (size_t m = 0; m < d; ++m) {
    const auto gate = static_cast<double>(output_gate_[at + m]);
    const double act = (options_.gate_act == Activation::kSilu ? gate : 1) / (1 + std::exp(-gate));
    (*out)[m] *= act;
    (*error)[m] = std::abs(act) * (*error)[m] + kRounding * std::abs((*out)[m]);
  }
}

}  // namespace fox::cuda::testing
