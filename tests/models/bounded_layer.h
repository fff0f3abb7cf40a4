// One layer's weights as a test makes them, and the queries and keys that they can produce, which
// try to break the bounds from weights.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "models/query_bounds.h"
#include "tests/models/typed_tensor.h"

namespace fox::testing {

using Vector = std::vector<double>;
using Tensor = TypedTensor;

inline double ToBf16(double x) {
  return static_cast<double>(static_cast<float>(BFloat16(static_cast<float>(x))));
}

inline double Dot(const double* a, const double* b, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

inline double Norm(const Vector& x) {
  return std::sqrt(Dot(x.data(), x.data(), static_cast<int64_t>(x.size())));
}

inline void ScaleTo(double norm, Vector& x) {
  const double scale = norm / std::max(Norm(x), 1e-300);
  for (double& value : x) value *= scale;
}

inline double FactorOf(const ModelConfig& config) { return config.rope_scaling.attention_factor; }

inline ModelConfig Config(int heads, int kv_heads, int head_dim, bool rope) {
  ModelConfig config;
  config.num_heads = heads;
  config.num_kv_heads = kv_heads;
  config.head_dim = head_dim;
  config.hidden_size = static_cast<int64_t>(heads) * head_dim;
  config.use_rope = rope;
  return config;
}

// The pairwise turn of x that lies closest to k: each pair (m, m + d/2) points along k's.
inline Vector TurnedTowards(const Vector& x, const Vector& k) {
  const size_t half = x.size() / 2;
  Vector turned(x.size());
  for (size_t m = 0; m < half; ++m) {
    const double length = std::hypot(x[m], x[m + half]);
    const double along = std::max(std::hypot(k[m], k[m + half]), 1e-300);
    turned[m] = length * k[m] / along;
    turned[m + half] = length * k[m + half] / along;
  }
  return turned;
}

// With QK-norm: q = gq * qhat times the attention factor, ||qhat|| = sqrt(d); k likewise. Caps are
// norm weights that are equal within a head.
struct NormedLayer {
  ModelConfig config;
  Tensor q_norm = {}, k_norm = {}, q_cap = {}, k_cap = {}, sinks = {};

  HostQueryBound Bound(DType pages = DType::kBF16) const {
    LayerTensors layer;
    layer.q_norm = q_norm.view();
    layer.k_norm = k_norm.view();
    layer.q_cap = q_cap.view();
    layer.k_cap = k_cap.view();
    layer.sinks = sinks.view();
    return MakeQueryBound(config, layer, pages);
  }
  // Caps in place of norm weights.
  void CapNorms() {
    const int d = config.head_dim;
    config.qk_norm = false;
    config.qk_norm_cap = true;
    const auto cap = [&](Tensor& norm, int heads) {
      Vector caps, alike;
      for (int head = 0; head < heads; ++head) {
        caps.push_back(ToBf16(std::abs(norm.values[static_cast<size_t>(head * d)]) + 0.1));
        alike.insert(alike.end(), static_cast<size_t>(d), caps.back() / std::sqrt(d));
      }
      norm = Tensor(alike, {int64_t{heads} * d}, DType::kF64);
      return Tensor(caps, {heads}, DType::kF32);
    };
    q_cap = cap(q_norm, config.num_heads);
    k_cap = cap(k_norm, config.num_kv_heads);
  }
  const double* Gq(int head) const {
    return q_norm.values.data() + (config.qk_norm_per_head ? head * config.head_dim : 0);
  }
  const double* Gk(int head) const {
    const int kv_head = head / config.group_size();
    return k_norm.values.data() + (config.qk_norm_per_head ? kv_head * config.head_dim : 0);
  }
};

// Without QK-norm: q = W (g * xhat) + b times the attention factor, ||xhat|| <= sqrt(D); k
// likewise.
struct PlainLayer {
  ModelConfig config;
  Tensor attn_norm = {}, q_proj = {}, q_bias = {}, k_proj = {}, k_bias = {}, sinks = {};

  HostQueryBound Bound(DType pages = DType::kBF16) const {
    LayerTensors layer;
    layer.attn_norm = attn_norm.view();
    layer.q_proj = q_proj.view();
    layer.q_bias = q_bias.view();
    layer.k_proj = k_proj.view();
    layer.k_bias = k_bias.view();
    layer.v_proj = k_proj.view();  // values are as keys
    layer.v_bias = k_bias.view();
    layer.sinks = sinks.view();
    ModelConfig normed = config;
    normed.output_norm = true;  // for a bound on values
    return MakeQueryBound(normed, layer, pages);
  }
  // A layer whose queries are the keys of this layer.
  PlainLayer Keys() const {
    PlainLayer keys{config, attn_norm, k_proj, k_bias};
    keys.config.num_heads = config.num_kv_heads;
    return keys;
  }
  const double* Row(int head, int m) const {
    return q_proj.values.data() + (head * config.head_dim + m) * config.hidden_size;
  }
  double Bias(int head, int m) const {
    return q_bias.values.empty() ? 0
                                 : q_bias.values[static_cast<size_t>(head * config.head_dim + m)];
  }
  // xhat of norm sqrt(D) with the largest (sign 1) or smallest k.W(g * xhat): along g * W^T k.
  Vector Worst(int head, const Vector& k, double sign) const {
    Vector x(static_cast<size_t>(config.hidden_size));
    for (size_t i = 0; i < x.size(); ++i) {
      for (size_t m = 0; m < k.size(); ++m) x[i] += sign * Row(head, static_cast<int>(m))[i] * k[m];
      x[i] *= attn_norm.values[i];
    }
    ScaleTo(std::sqrt(static_cast<double>(config.hidden_size)), x);
    return x;
  }
  // The query of xhat. With `rounded` weights, inputs and the product each pass through bf16.
  Vector Query(int head, const Vector& xhat, bool rounded) const {
    const auto keep = [&](double x) { return rounded ? ToBf16(x) : x; };
    Vector q;
    for (int m = 0; m < config.head_dim; ++m) {
      double sum = Bias(head, m);
      for (size_t i = 0; i < xhat.size(); ++i) {
        sum += keep(Row(head, m)[i]) * keep(attn_norm.values[i] * xhat[i]);
      }
      q.push_back(FactorOf(config) * keep(sum));
    }
    return q;
  }
};

enum class Rank { kFull, kOne, kZero };

// Random numbers, and layers made of them.
class QueryBounds : public ::testing::Test {
 protected:
  Vector Gaussian(int64_t count, double deviation = 1, double mean = 0) {
    Vector values(static_cast<size_t>(count));
    for (double& x : values) x = mean + deviation * normal_(rng_);
    return values;
  }
  // Rotates each pair of dimensions (m, m + d/2) by a random angle.
  void RotateAnyhow(Vector& x) {
    const size_t half = x.size() / 2;
    for (size_t m = 0; m < half; ++m) {
      const double angle = static_cast<double>(rng_() % 100003), low = x[m], high = x[m + half];
      x[m] = low * std::cos(angle) - high * std::sin(angle);
      x[m + half] = high * std::cos(angle) + low * std::sin(angle);
    }
  }

  PlainLayer MakePlainLayer(const ModelConfig& config, bool bias, Rank rank, DType dtype,
                            double size = 0.5) {
    const int64_t hidden = config.hidden_size;
    Vector weights = Gaussian(hidden * hidden, size / std::sqrt(static_cast<double>(hidden)));
    if (rank == Rank::kOne) {
      const Vector left = Gaussian(hidden, 0.3), right = Gaussian(hidden, 0.3);
      for (size_t i = 0; i < weights.size(); ++i) {
        weights[i] = left[i / right.size()] * right[i % right.size()];
      }
    }
    if (rank == Rank::kZero) weights.assign(weights.size(), 0.0);
    PlainLayer layer{.config = config};
    layer.attn_norm = Tensor(Gaussian(hidden, 0.4, 1), {hidden}, dtype);
    layer.q_proj = Tensor(weights, {hidden, hidden}, dtype);
    if (bias) layer.q_bias = Tensor(Gaussian(hidden, 0.7), {hidden}, dtype);
    const int64_t kv = config.kv_size();
    const double deviation = 0.5 / std::sqrt(static_cast<double>(hidden));
    layer.k_proj = Tensor(Gaussian(kv * hidden, deviation), {kv, hidden}, dtype);
    if (bias) layer.k_bias = Tensor(Gaussian(kv, 0.7), {kv}, dtype);
    return layer;
  }

  std::mt19937_64 rng_{7};
  std::normal_distribution<double> normal_;
};

}  // namespace fox::testing
