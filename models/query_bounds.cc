// Bounds on attention logits from the weights. Everything here is float64 and rounded up where it
// matters: a bound that is too small would break the promise, one that is too large only costs
// pages.
#include "models/query_bounds.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/acp.h"

namespace fox {
namespace {

// Pays for rounding of the query path without QK-norm: weights, inputs and products in bf16.
constexpr double kQueryRounding = 1.0 / 128;
constexpr double kUnknown = std::numeric_limits<double>::infinity();

std::vector<double> Read(const HostTensor& tensor) {
  std::vector<double> values(static_cast<size_t>(tensor.size()));
  ReadElements(tensor, 0, tensor.size(), values.data());
  return values;
}

// Norm weights of one head, from per-head or shared vectors.
const double* HeadOf(const std::vector<double>& norm, int head, int head_dim) {
  const bool shared = norm.size() == static_cast<size_t>(head_dim);
  return norm.data() + (shared ? 0 : head * head_dim);
}

// QK-norm: ||q / gq|| <= sqrt(d). Under RoPE a pair of dimensions mixes, so both take the larger
// weight; s_ii is not rotated, B keeps the plain products.
void BoundByQkNorm(const ModelConfig& config, const LayerTensors& layer, HostQueryBound& bound) {
  const int d = config.head_dim;
  const std::vector<double> q_norm = Read(layer.q_norm), k_norm = Read(layer.k_norm);
  bound.scale = kKeyNormInflation;
  bound.diagonal.resize(static_cast<size_t>(config.num_heads * d));
  for (int head = 0; head < config.num_heads; ++head) {
    const double* gq = HeadOf(q_norm, head, d);
    const double* gk = HeadOf(k_norm, head / config.group_size(), d);
    double product = 0, q_max = 0, k_max = 0;
    for (int m = 0; m < d; ++m) {
      product = std::max(product, std::abs(gq[m] * gk[m]));
      q_max = std::max(q_max, std::abs(gq[m]));
      k_max = std::max(k_max, std::abs(gk[m]));
      const double partner = config.use_rope ? std::abs(gq[(m + d / 2) % d]) : 0;
      bound.diagonal[static_cast<size_t>(head * d + m)] =
          static_cast<float>(std::max(std::abs(gq[m]), partner));
    }
    bound.self_logit_bound.push_back(kProductInflation * std::sqrt(d) * product);
    bound.max_logit_bound.push_back(kProductInflation * std::sqrt(d) * q_max * k_max);
  }
}

// G = W diag(g^2) W^T for the d rows W of one head: ||q - b||^2 in the direction k is k^T G k times
// at most D.
std::vector<double> QueryGram(const std::vector<double>& rows, int d, int64_t hidden) {
  std::vector<double> gram(static_cast<size_t>(d * d));
  for (int a = 0; a < d; ++a) {
    for (int b = 0; b <= a; ++b) {
      double sum = 0;
      for (int64_t i = 0; i < hidden; ++i) {
        sum +=
            rows[static_cast<size_t>(a * hidden + i)] * rows[static_cast<size_t>(b * hidden + i)];
      }
      gram[static_cast<size_t>(a * d + b)] = gram[static_cast<size_t>(b * d + a)] = sum;
    }
  }
  return gram;
}

// R upper triangular with R^T R = G + jitter; the jitter keeps a singular G factorable and can only
// raise the bound.
std::vector<double> CholeskyUpper(std::vector<double> gram, int d) {
  double trace = 0;
  for (int m = 0; m < d; ++m) trace += gram[static_cast<size_t>(m * d + m)];
  const double jitter = 1e-12 * trace + 1e-300;
  std::vector<double> upper(gram.size());
  for (int row = 0; row < d; ++row) {
    for (int col = row; col < d; ++col) {
      double sum = gram[static_cast<size_t>(row * d + col)] + (row == col ? jitter : 0);
      for (int k = 0; k < row; ++k) {
        sum -= upper[static_cast<size_t>(k * d + row)] * upper[static_cast<size_t>(k * d + col)];
      }
      upper[static_cast<size_t>(row * d + col)] =
          row == col ? std::sqrt(std::max(sum, jitter))
                     : sum / upper[static_cast<size_t>(row * d + row)];
    }
  }
  return upper;
}

// An upper bound on the largest eigenvalue: lambda^p <= trace(G^p) for p = 2^8, at most 2% above
// it.
double LargestEigenvalue(std::vector<double> gram, int d) {
  double log_scale = 0;
  double power = 1;
  std::vector<double> square(gram.size());
  for (int step = 0; step < 8; ++step) {
    double trace = 0;
    for (int m = 0; m < d; ++m) trace += gram[static_cast<size_t>(m * d + m)];
    if (!(trace > 0)) return 0;
    for (double& x : gram) x /= trace;
    log_scale += std::log(trace) / power;
    for (int a = 0; a < d; ++a) {
      for (int b = 0; b < d; ++b) {
        double sum = 0;
        for (int k = 0; k < d; ++k) {
          sum += gram[static_cast<size_t>(a * d + k)] * gram[static_cast<size_t>(k * d + b)];
        }
        square[static_cast<size_t>(a * d + b)] = sum;
      }
    }
    gram.swap(square);
    power *= 2;
  }
  double trace = 0;
  for (int m = 0; m < d; ++m) trace += gram[static_cast<size_t>(m * d + m)];
  return std::exp(log_scale + std::log(trace) / power) * (1 + 1e-9);
}

// One head without QK-norm: q = W (g * xhat) + b with ||xhat|| <= sqrt(D).
void BoundHeadByWeights(const ModelConfig& config, const std::vector<double>& rows,
                        const double* bias, HostQueryBound& bound) {
  const int d = config.head_dim;
  const double root_hidden = std::sqrt(static_cast<double>(config.hidden_size));
  const double root_d = std::sqrt(d);
  const std::vector<double> gram = QueryGram(rows, d, config.hidden_size);
  std::vector<double> reach(static_cast<size_t>(d));  // Q_m: the largest |q_m|
  for (int m = 0; m < d; ++m) {
    reach[static_cast<size_t>(m)] =
        root_hidden * std::sqrt(gram[static_cast<size_t>(m * d + m)]) + std::abs(bias[m]);
  }
  if (config.use_rope) {
    // The angle between a query and a key is unknown: only norms remain.
    double square = 0;
    for (int m = 0; m < d; ++m) square += bias[m] * bias[m];
    const double norm = root_hidden * std::sqrt(LargestEigenvalue(gram, d)) + std::sqrt(square);
    bound.diagonal.insert(bound.diagonal.end(), static_cast<size_t>(d),
                          static_cast<float>(norm / root_d));
    for (int m = 0; m < d / 2; ++m) {
      double& low = reach[static_cast<size_t>(m)];
      double& high = reach[static_cast<size_t>(m + d / 2)];
      low = high = std::hypot(low, high);
    }
  } else {
    for (double x : CholeskyUpper(gram, d)) {
      bound.dense.push_back(static_cast<float>(x * root_hidden / root_d));
    }
    for (int m = 0; m < d; ++m) bound.linear.push_back(static_cast<float>(bias[m] / root_d));
  }
  for (double x : reach) bound.absolute.push_back(static_cast<float>(kQueryRounding * x / root_d));
}

void BoundByWeights(const ModelConfig& config, const LayerTensors& layer, HostQueryBound& bound) {
  const int d = config.head_dim;
  const int64_t hidden = config.hidden_size;
  const std::vector<double> norm = Read(layer.attn_norm);
  std::vector<double> bias(static_cast<size_t>(hidden), 0.0);
  if (!layer.q_bias.empty()) bias = Read(layer.q_bias);
  bound.scale = 1 + kQueryRounding;
  std::vector<double> rows(static_cast<size_t>(d * hidden));
  for (int head = 0; head < config.num_heads; ++head) {
    ReadElements(layer.q_proj, head * d * hidden, d * hidden, rows.data());
    for (size_t i = 0; i < rows.size(); ++i) rows[i] *= norm[i % static_cast<size_t>(hidden)];
    BoundHeadByWeights(config, rows, bias.data() + head * d, bound);
    bound.self_logit_bound.push_back(kUnknown);
    bound.max_logit_bound.push_back(kUnknown);
  }
}

template <typename T>
const T* PointerOrNull(const std::vector<T>& values) {
  return values.empty() ? nullptr : values.data();
}

template <typename T>
const T* Upload(const std::vector<T>& values, Ops& ops, std::vector<Buffer>& buffers) {
  if (values.empty()) return nullptr;
  Buffer buffer = ops.Allocate(values.size() * sizeof(T));
  ops.CopyToDevice(values.data(), values.size() * sizeof(T), buffer.data(), nullptr);
  buffers.push_back(std::move(buffer));
  return buffers.back().as<T>();
}

}  // namespace

QueryBound HostQueryBound::view() const {
  QueryBound view;
  view.diagonal = PointerOrNull(diagonal);
  view.dense = PointerOrNull(dense);
  view.linear = PointerOrNull(linear);
  view.absolute = PointerOrNull(absolute);
  view.scale = scale;
  view.self_logit_bound = PointerOrNull(self_logit_bound);
  view.max_logit_bound = PointerOrNull(max_logit_bound);
  return view;
}

HostQueryBound MakeQueryBound(const ModelConfig& config, const LayerTensors& layer) {
  HostQueryBound bound;
  if (config.qk_norm) {
    BoundByQkNorm(config, layer, bound);
  } else {
    BoundByWeights(config, layer, bound);
  }
  // One clamp for the layer: the loosest that every head needs.
  for (double b : bound.self_logit_bound)
    bound.min_log_gate = std::min(bound.min_log_gate, MinLogGate(b));
  return bound;
}

DeviceQueryBound::DeviceQueryBound(const HostQueryBound& host, Ops& ops)
    : view_(host.view()), min_log_gate_(host.min_log_gate) {
  view_.diagonal = Upload(host.diagonal, ops, buffers_);
  view_.dense = Upload(host.dense, ops, buffers_);
  view_.linear = Upload(host.linear, ops, buffers_);
  view_.absolute = Upload(host.absolute, ops, buffers_);
  view_.self_logit_bound = Upload(host.self_logit_bound, ops, buffers_);
  view_.max_logit_bound = Upload(host.max_logit_bound, ops, buffers_);
}

}  // namespace fox
