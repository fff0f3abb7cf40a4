// Bounds on attention logits from the weights, in float64. Where rounding matters, it goes up: a
// bound that is too small would break the promise, while a bound that is too large only costs
// pages.
#include "models/query_bounds.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "kernels/core/check.h"
#include "kernels/core/dot.h"
#include "kernels/paging/acp.h"

namespace fox {
namespace {

// Pays for rounding of the query path without QK-norm: weights, inputs and products in bf16, sums
// over up to 2^15 inputs in float32 (kernels/docs/acp.md 5).
constexpr double kQueryRounding = 0x1p-6;
// Half a step of an input rounded to 16 bits, relative to the largest of its block
// (kernels/cpu/isa/isa_kernels.h), and the float32 arithmetic on the way.
constexpr double kBlockInputRounding = 1.25 * 0x1p-16;
constexpr double kUnknown = std::numeric_limits<double>::infinity();

template <typename T = double>
std::vector<T> Read(const HostTensor& tensor) {
  std::vector<T> values(static_cast<size_t>(tensor.size()));
  ReadElements(tensor, 0, tensor.size(), values.data());
  return values;
}

std::vector<double> Scaled(std::vector<double> values, double factor) {
  for (double& x : values) x *= factor;
  return values;
}

// The weights of QK-norm, times the attention factor. A cap bounds norms as QK-norm with all
// weights cap / sqrt(d) would.
std::vector<double> NormWeights(const ModelConfig& config, const HostTensor& norm,
                                const HostTensor& cap) {
  const double factor = config.rope_scaling.attention_factor;
  if (cap.empty()) return Scaled(Read(norm), factor);
  std::vector<double> weights;
  for (const float value : Read<float>(cap)) {
    weights.insert(weights.end(), static_cast<size_t>(config.head_dim),
                   value / std::sqrt(config.head_dim) * factor);
  }
  return weights;
}

// Norm weights of one head, from per-head or shared vectors.
const double* HeadOf(const std::vector<double>& norm, int head, int head_dim) {
  const bool shared = norm.size() == static_cast<size_t>(head_dim);
  FOX_CHECK(shared || norm.size() >= static_cast<size_t>((head + 1) * head_dim));
  return norm.data() + (shared ? 0 : head * head_dim);
}

// QK-norm or caps: ||q / gq|| <= sqrt(d). RoPE mixes a pair of dimensions, so both take the larger
// weight. The self logit s_ii does not depend on the rotation: its bound B has the plain products,
// and pays for the rounding of rotated values.
void BoundByNorms(const ModelConfig& config, const LayerTensors& layer, DType kv,
                  HostQueryBound& bound) {
  const int d = config.head_dim;
  const std::vector<double> q_norm = NormWeights(config, layer.q_norm, layer.q_cap);
  const std::vector<double> k_norm = NormWeights(config, layer.k_norm, layer.k_cap);
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
    bound.self_logit_bound.push_back(SelfLogitBound(d, product, q_max, k_max, config.use_rope, kv));
    bound.max_logit_bound.push_back(MaxLogitBound(d, q_max, k_max, kv));
    bound.max_norm_product.push_back(bound.max_logit_bound.back());
    // Without rotation keys reach no further than B.
    bound.LoosenClamp(config.use_rope ? bound.max_logit_bound.back()
                                      : bound.self_logit_bound.back());
  }
}

// One head of a projection that reads the normalized hidden state: y = W (g * xhat) + b with
// ||xhat|| <= sqrt(D). g and b have RoPE's attention factor in them. `rows` are the head's rows of
// W diag(g), and `gram` is their Gram matrix G: ((y - b)^T k)^2 is at most D k^T G k for every k.
struct HeadProjection {
  std::vector<double> rows;      // [d, D]
  std::vector<double> gram;      // [d, d]
  std::vector<double> bias;      // [d]
  std::vector<double> rounding;  // [d] of y by inputs that are rounded block by block
};

// The rounding of one row W_m: |x_i| <= ||xhat_b|| max_b |g| in block b, so by Cauchy and Schwarz
// sqrt(D) times the root of the sum of (||W_mb||_1 max_b |g|)^2.
double BlockRounding(const double* row, const std::vector<double>& norm) {
  const auto hidden = static_cast<int64_t>(norm.size());
  double squares = 0;
  for (int64_t first = 0; first < hidden; first += kBlockColumns) {
    double sum = 0, largest = 0;
    for (int64_t i = first; i < std::min(hidden, first + kBlockColumns); ++i) {
      sum += std::abs(row[i]);
      largest = std::max(largest, std::abs(norm[static_cast<size_t>(i)]));
    }
    squares += sum * largest * sum * largest;
  }
  return kBlockInputRounding * std::sqrt(static_cast<double>(hidden) * squares);
}

HeadProjection ReadHead(const ModelConfig& config, const std::vector<double>& norm,
                        const HostTensor& weight, const HostTensor& bias, int head,
                        bool in_blocks) {
  const int d = config.head_dim;
  const int64_t hidden = config.hidden_size;
  FOX_CHECK(norm.size() == static_cast<size_t>(hidden) && weight.size() % hidden == 0);
  HeadProjection p;
  p.rows.resize(static_cast<size_t>(d * hidden));
  p.gram.resize(static_cast<size_t>(d * d));
  p.bias.resize(static_cast<size_t>(d));
  ReadElements(weight, head * d * hidden, d * hidden, p.rows.data());
  if (!bias.empty()) ReadElements(bias, static_cast<int64_t>(head) * d, d, p.bias.data());
  p.bias = Scaled(std::move(p.bias), config.rope_scaling.attention_factor);
  p.rounding.resize(static_cast<size_t>(d));
  for (int m = 0; in_blocks && m < d; ++m) {
    p.rounding[static_cast<size_t>(m)] = BlockRounding(p.rows.data() + m * hidden, norm);
  }
  for (size_t i = 0; i < p.rows.size(); ++i) p.rows[i] *= norm[i % static_cast<size_t>(hidden)];
  for (int a = 0; a < d; ++a) {
    for (int b = 0; b <= a; ++b) {
      p.gram[static_cast<size_t>(a * d + b)] = p.gram[static_cast<size_t>(b * d + a)] =
          Dot(p.rows.data() + a * hidden, p.rows.data() + b * hidden, hidden);
    }
  }
  return p;
}

// ||y|| at most: sqrt(D lambda) + ||b|| with lambda, the largest eigenvalue of G, at most the
// largest sum of magnitudes in a row of G.
double LargestNorm(const ModelConfig& config, const HeadProjection& p) {
  const auto d = static_cast<size_t>(config.head_dim);
  double lambda = 0;
  for (size_t a = 0; a < d; ++a) {
    double sum = 0;
    for (size_t b = 0; b < d; ++b) sum += std::abs(p.gram[a * d + b]);
    lambda = std::max(lambda, sum);
  }
  return std::sqrt(static_cast<double>(config.hidden_size) * lambda) +
         std::sqrt(Dot(p.bias.data(), p.bias.data(), config.head_dim)) +
         std::sqrt(Dot(p.rounding.data(), p.rounding.data(), config.head_dim));
}

double Trace(const std::vector<double>& gram, int d) {
  double trace = 0;
  for (int m = 0; m < d; ++m) trace += gram[static_cast<size_t>(m * d + m)];
  return trace;
}

// R upper triangular with R^T R = G + jitter; the jitter keeps a singular G factorable and can only
// raise the bound.
std::vector<double> CholeskyUpper(std::vector<double> gram, int d) {
  FOX_CHECK(gram.size() == static_cast<size_t>(d * d));
  const double jitter = 1e-12 * Trace(gram, d) + 1e-300;
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
  FOX_CHECK(gram.size() == static_cast<size_t>(d * d));
  double log_scale = 0;
  double power = 1;
  std::vector<double> square(gram.size());
  for (int step = 0; step < 8; ++step) {
    const double trace = Trace(gram, d);
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
  return std::exp(log_scale + std::log(Trace(gram, d)) / power) * (1 + 1e-9);
}

// One head without QK-norm, from its query projection.
void BoundHeadByWeights(const ModelConfig& config, const HeadProjection& query,
                        HostQueryBound& bound) {
  const int d = config.head_dim;
  const double root_hidden = std::sqrt(static_cast<double>(config.hidden_size));
  const double root_d = std::sqrt(d);
  const std::vector<double>&gram = query.gram, &bias = query.bias;
  // Q_m: the largest |q_m|, and so much more that the rounding of inputs is paid for, too.
  std::vector<double> reach(static_cast<size_t>(d));
  for (int m = 0; m < d; ++m) {
    reach[static_cast<size_t>(m)] = root_hidden * std::sqrt(gram[static_cast<size_t>(m * d + m)]) +
                                    std::abs(bias[static_cast<size_t>(m)]) +
                                    query.rounding[static_cast<size_t>(m)] / kQueryRounding;
  }
  if (config.use_rope) {
    // The angle between a query and a key is unknown: only norms remain.
    const double norm = root_hidden * std::sqrt(LargestEigenvalue(gram, d)) +
                        std::sqrt(Dot(bias.data(), bias.data(), d));
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
    for (double b : bias) bound.linear.push_back(static_cast<float>(b / root_d));
  }
  for (double x : reach) bound.absolute.push_back(static_cast<float>(kQueryRounding * x / root_d));
}

void BoundByWeights(const ModelConfig& config, const LayerTensors& layer, DType kv, bool in_blocks,
                    HostQueryBound& bound) {
  const std::vector<double> norm =
      Scaled(Read(layer.attn_norm), config.rope_scaling.attention_factor);
  bound.scale = 1 + kQueryRounding;
  std::vector<double> key_norms;
  for (int head = 0; head < config.num_kv_heads; ++head) {
    const HeadProjection key = ReadHead(config, norm, layer.k_proj, layer.k_bias, head, in_blocks);
    key_norms.push_back(LargestNorm(config, key));
  }
  for (int head = 0; head < config.num_heads; ++head) {
    const HeadProjection query =
        ReadHead(config, norm, layer.q_proj, layer.q_bias, head, in_blocks);
    BoundHeadByWeights(config, query, bound);
    bound.self_logit_bound.push_back(kUnknown);
    bound.max_logit_bound.push_back(kUnknown);
    const double key_norm = key_norms[static_cast<size_t>(head / config.group_size())];
    bound.max_norm_product.push_back(ProductInflation(kv) * LargestNorm(config, query) * key_norm /
                                     std::sqrt(config.head_dim));
    bound.LoosenClamp(bound.max_norm_product.back());
  }
}

// The largest ||v|| of each head, as MaxNormProduct bounds keys; a token shift keeps it.
void BoundValues(ModelConfig config, const LayerTensors& layer, DType kv, bool in_blocks,
                 HostQueryBound& bound) {
  config.rope_scaling.attention_factor = 1;  // values are not rotated
  const std::vector<double> norm = Read(layer.attn_norm);
  for (int head = 0; head < config.num_kv_heads; ++head) {
    const HeadProjection value =
        ReadHead(config, norm, layer.v_proj, layer.v_bias, head, in_blocks);
    const double largest = ProductInflation(kv) * LargestNorm(config, value);
    bound.log_max_value.insert(bound.log_max_value.end(), static_cast<size_t>(config.group_size()),
                               std::log(largest));
  }
}

// The bound with the pointers that `place` returns for its arrays.
template <typename Place>
QueryBound ViewOf(const HostQueryBound& bound, const Place& place) {
  QueryBound view;
  view.diagonal = place(bound.diagonal);
  view.dense = place(bound.dense);
  view.linear = place(bound.linear);
  view.absolute = place(bound.absolute);
  view.scale = bound.scale;
  view.self_logit_bound = place(bound.self_logit_bound);
  view.max_logit_bound = place(bound.max_logit_bound);
  view.max_norm_product = place(bound.max_norm_product);
  return view;
}

}  // namespace

Buffer Upload(std::span<const std::byte> bytes, Ops& ops) {
  if (bytes.empty()) return {};
  Buffer buffer = ops.Allocate(bytes.size());
  ops.CopyToDevice(bytes.data(), bytes.size(), buffer.data(), nullptr);
  return buffer;
}

QueryBound HostQueryBound::view() const {
  return ViewOf(*this, [](const auto& v) { return v.empty() ? nullptr : v.data(); });
}

void HostQueryBound::LoosenClamp(double largest_logit) {
  min_log_gate = std::min(min_log_gate, MinLogGate(largest_logit));
}

HostQueryBound MakeQueryBound(const ModelConfig& config, const LayerTensors& layer, DType kv,
                              bool in_blocks) {
  HostQueryBound bound;
  if (config.forget_gate == ForgetGate::kNone) {  // nothing is pruned
    bound.self_logit_bound.assign(static_cast<size_t>(config.num_heads), kUnknown);
    bound.max_norm_product = bound.max_logit_bound = bound.self_logit_bound;
    return bound;
  }
  if (config.qk_norm || config.qk_norm_cap) {
    BoundByNorms(config, layer, kv, bound);
  } else {
    BoundByWeights(config, layer, kv, in_blocks, bound);
  }
  if (config.output_norm) BoundValues(config, layer, kv, in_blocks, bound);
  if (config.attention_sink) {
    const std::vector<float> sinks = Read<float>(layer.sinks);
    FOX_CHECK(sinks.size() == bound.self_logit_bound.size());
    for (size_t head = 0; head < sinks.size(); ++head) {
      double& b = bound.self_logit_bound[head];
      b = std::min(b, -static_cast<double>(sinks[head]));
    }
  }
  const auto heads = static_cast<size_t>(config.num_heads);
  FOX_CHECK(bound.self_logit_bound.size() == heads && bound.max_logit_bound.size() == heads);
  FOX_CHECK(bound.max_norm_product.size() == heads);
  FOX_CHECK(bound.diagonal.empty() != bound.dense.empty());
  return bound;
}

DeviceQueryBound::DeviceQueryBound(const HostQueryBound& host, Ops& ops)
    : min_log_gate_(host.min_log_gate) {
  view_ = ViewOf(host, [&]<typename T>(const std::vector<T>& values) -> const T* {
    return buffers_.emplace_back(Upload(std::as_bytes(std::span(values)), ops)).template as<T>();
  });
}

}  // namespace fox
