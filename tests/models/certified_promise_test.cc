// The promise from a layer's weights on: no row loses more than eps to dropped pages under the
// bounds that models/query_bounds.h derives from the weights.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/mass_audit.h"
#include "models/query_bounds.h"
#include "tests/kernels/head_sequence.h"
#include "tests/models/bounded_layer.h"

namespace fox::testing {
namespace {

class CertifiedPromiseTest : public QueryBounds {
 protected:
  // out += W x, W [n, D].
  static void AddProduct(const Vector& weight, const double* x, int64_t hidden, double* out) {
    const auto rows = static_cast<int64_t>(weight.size()) / hidden;
    for (int64_t o = 0; o < rows; ++o) out[o] += Dot(weight.data() + o * hidden, x, hidden);
  }

  // Normalized rows. If `hostile`, rows of the second half attend to an early key as strongly as a
  // query can.
  Vector Rows(const PlainLayer& layer, int64_t length, bool hostile) {
    const ModelConfig& config = layer.config;
    const int64_t hidden = config.hidden_size;
    Vector rows;
    for (int64_t row = 0; row < length; ++row) {
      Vector x = Gaussian(hidden);
      if (hostile && row > length / 2) {
        const int head = static_cast<int>(rng_() % static_cast<uint64_t>(config.num_heads));
        const auto early = static_cast<int64_t>(rng_() % 256);
        Vector keys(static_cast<size_t>(config.kv_size()));
        AddProduct(layer.k_proj.values, rows.data() + early * hidden, hidden, keys.data());
        const auto key = keys.begin() + head / config.group_size() * config.head_dim;
        x = layer.Worst(head, Vector(key, key + config.head_dim), 1);
      }
      ScaleTo(std::sqrt(static_cast<double>(hidden)), x);
      for (size_t i = 0; i < x.size(); ++i) rows.push_back(x[i] * layer.attn_norm.values[i]);
    }
    return rows;
  }

  // The bias of the keys: along the bias of the queries if `hostile`, else 0.
  static Tensor KeyBias(const PlainLayer& layer, bool hostile) {
    const int64_t kv = layer.config.kv_size();
    Vector bias(static_cast<size_t>(kv));
    for (size_t m = 0; hostile && m < bias.size(); ++m) bias[m] = 2 * layer.q_bias.values[m];
    return Tensor(bias, {kv}, DType::kF64);
  }

  // Gates from heads that forget within a few tokens to heads that hardly do.
  HeadInputs Project(const PlainLayer& layer, int64_t length, bool hostile) {
    const ModelConfig& config = layer.config;
    const int64_t hidden = config.hidden_size, kv = config.kv_size();
    HeadShape shape{config.num_heads, config.num_kv_heads, config.head_dim};
    shape.qk_norm = false;
    shape.rope = config.use_rope;
    shape.attention_factor = FactorOf(config);
    shape.sink = config.attention_sink;
    HeadInputs inputs = RandomInputs(shape, length, 1, {0});  // its projection is replaced
    inputs.sink.assign(layer.sinks.values.begin(), layer.sinks.values.end());
    const double unit = 1 / std::sqrt(static_cast<double>(hidden));
    const Vector v_weight = Gaussian(hidden * kv, unit);
    const Vector gate_weight = Gaussian(hidden * config.num_heads, unit);
    const Vector rows = Rows(layer, length, hostile);
    const Vector &q_bias = layer.q_bias.values, &k_bias = layer.k_bias.values;
    for (int64_t row = 0; row < length; ++row) {
      double* out = &inputs.at(row, 0);
      const double* x = rows.data() + row * hidden;
      std::fill_n(out, inputs.columns(), 0.0);
      std::copy(q_bias.begin(), q_bias.end(), out);
      // Hostile keys turn from the bias to its opposite, where all later logits are small.
      const double side = row < length / 2 ? 1 : -1;
      for (size_t m = 0; m < k_bias.size(); ++m)
        out[static_cast<size_t>(hidden) + m] = side * k_bias[m];
      for (int head = 0; head < config.num_heads; ++head) {
        out[inputs.gate_column() + head] = -2 + 9.0 * head / config.num_heads;
      }
      AddProduct(layer.q_proj.values, x, hidden, out);
      AddProduct(layer.k_proj.values, x, hidden, out + hidden);
      AddProduct(v_weight, x, hidden, out + hidden + kv);
      AddProduct(gate_weight, x, hidden, out + inputs.gate_column());
    }
    return inputs;
  }

  // Runs the layer with and without pruning, with pages of 8 bits audited; returns the largest
  // dropped mass of a row.
  template <typename Layer>
  double Measure(const Layer& layer, const HeadInputs& inputs, DType pages, int64_t* evicted) {
    const HostQueryBound host = layer.Bound(pages);
    const QueryBound bound = host.view();
    const auto audit = std::make_shared<MassAudit>(MassAudit::OnBreach::kRecord);
    CpuOps ops({.audit = audit});
    RunOptions options{.dtype = pages, .acp = AcpMode::kCertified, .chunks = {64}};
    options.bound = &bound;
    options.min_log_gate = host.min_log_gate;
    const HeadOutputs pruned = RunHeads(ops, inputs, options);
    double dropped = std::exp(audit->max_excess() - 10);
    if (pages == DType::kF64) {
      options.acp = AcpMode::kOff;
      const HeadOutputs full = RunHeads(ops, inputs, options);
      for (size_t i = 0; i < full.lse.size(); ++i) {
        dropped = std::max(dropped, -std::expm1(pruned.lse[i] - full.lse[i]));
      }
    }
    for (double mass : pruned.max_log_evicted_mass) EXPECT_LE(mass, -10);
    // The first head forgets 64 tokens back more than e^-100.
    EXPECT_GT(pruned.first_live[0], PagesFor(inputs.length) / 2);
    *evicted += pruned.pages_evicted;
    return dropped;
  }
};

TEST_F(CertifiedPromiseTest, HoldsForHundredsOfHeads) {
  int64_t evicted = 0;
  double worst = 0;
  for (int number = 0; number < 48; ++number) {
    const bool rope = number % 2 == 1, bias = number / 2 % 2 == 1, hostile = number / 4 % 2 == 1;
    ModelConfig config = Config(16, 16, 8, rope);
    if (number % 3 == 1) config = Config(8, 8, 16, rope);
    if (number % 3 == 2) config = Config(8, 4, 16, rope);
    if (rope && number / 8 % 2 == 1) config.rope_scaling.attention_factor = 1.5;
    const Rank rank = number % 12 == 0 ? Rank::kOne : Rank::kFull;
    // With a small W the bias alone makes the bound.
    const double size = bias && hostile ? 0.05 : 0.5;
    PlainLayer layer = MakePlainLayer(config, bias, rank, DType::kBF16, size);
    if (bias) layer.k_bias = KeyBias(layer, hostile);
    if (number % 5 == 0) {
      layer.config.attention_sink = true;
      layer.sinks = Tensor(Gaussian(config.num_heads, 10), {config.num_heads}, DType::kF32);
    }
    const HeadInputs inputs = Project(layer, 1000, hostile);
    for (const DType pages : {DType::kF64, DType::kE4M3}) {
      const double dropped = Measure(layer, inputs, pages, &evicted);
      EXPECT_LE(dropped, std::exp(-10)) << number;
      worst = std::max(worst, dropped);
    }
  }
  RecordProperty("pages_evicted", std::to_string(evicted));
  RecordProperty("worst_mass_times_e10", std::to_string(worst * std::exp(10)));
}

// The worst case under an attention factor and RoPE that turns nothing: old keys along u, later
// keys along -u, and all queries along u, of the largest norms that the weights allow.
class AttentionFactorTest : public CertifiedPromiseTest {
 protected:
  static constexpr int kHeads = 4, kDim = 16;

  AttentionFactorTest() { config_.rope_scaling.attention_factor = 1.5; }

  HeadInputs Inputs(HeadShape shape, double query, double key) {
    shape.rope = true;
    shape.attention_factor = 1.5;
    HeadInputs inputs = RandomInputs(shape, 768, 3, {-2, 1.5, 2.5, 3.5});
    inputs.rope_frequency.assign(kDim / 2, 0.0);
    for (int h = 0; h < kHeads; ++h) {
      Vector u = Gaussian(kDim);
      ScaleTo(1, u);
      for (int64_t row = 0; row < inputs.length; ++row) {
        for (int m = 0; m < kDim; ++m) {
          const double x = u[static_cast<size_t>(m)];
          inputs.at(row, h * kDim + m) = query * x;
          inputs.at(row, shape.hidden() + h * kDim + m) = row < 256 ? key * x : -key * x;
        }
      }
    }
    return inputs;
  }

  template <typename Layer>
  void ExpectPromise(const Layer& layer, const HeadInputs& inputs) {
    int64_t evicted = 0;
    for (const DType pages : {DType::kF64, DType::kE4M3}) {
      const double dropped = Measure(layer, inputs, pages, &evicted) * std::exp(10);
      EXPECT_LE(dropped, 1) << NameOf(pages);
      EXPECT_GT(dropped, 0.5) << NameOf(pages);
    }
    EXPECT_GT(evicted, 0);
  }

  ModelConfig config_ = Config(kHeads, kHeads, kDim, true);
};

TEST_F(AttentionFactorTest, QkNorm) {
  NormedLayer layer{.config = config_};
  layer.config.qk_norm = true;
  HeadInputs inputs = Inputs({kHeads, kHeads, kDim}, 9, 9);
  inputs.q_norm.assign(kHeads * kDim, 0.5);
  inputs.k_norm.assign(kHeads * kDim, 0.75);
  layer.q_norm = Tensor(inputs.q_norm, {kHeads * kDim}, DType::kF64);
  layer.k_norm = Tensor(inputs.k_norm, {kHeads * kDim}, DType::kF64);
  ExpectPromise(layer, inputs);
}

TEST_F(AttentionFactorTest, Caps) {
  NormedLayer layer{.config = config_};
  layer.config.qk_norm_cap = true;
  HeadShape shape{kHeads, kHeads, kDim, false, false, false};
  shape.norm_caps = true;
  HeadInputs inputs = Inputs(shape, 9, 9);
  inputs.q_cap.assign(kHeads, 2);
  inputs.k_cap.assign(kHeads, 3);
  layer.q_cap = Tensor(Vector(kHeads, 2), {kHeads}, DType::kF32);
  layer.k_cap = Tensor(Vector(kHeads, 3), {kHeads}, DType::kF32);
  ExpectPromise(layer, inputs);
}

// Each head multiplies the first inputs of 64 by 0.25 and 0.2, so its largest norms are 2 and 1.6.
TEST_F(AttentionFactorTest, Weights) {
  constexpr int64_t kHidden = int64_t{kHeads} * kDim;
  PlainLayer layer{.config = config_};
  layer.attn_norm = Tensor(Vector(kHidden, 1), {kHidden}, DType::kF64);
  Vector q(kHidden * kHidden), k(kHidden * kHidden);
  for (int64_t row = 0; row < kHidden; ++row) {
    q[static_cast<size_t>(row * kHidden + row % kDim)] = 0.25;
    k[static_cast<size_t>(row * kHidden + row % kDim)] = 0.2;
  }
  layer.q_proj = Tensor(q, {kHidden, kHidden}, DType::kF64);
  layer.k_proj = Tensor(k, {kHidden, kHidden}, DType::kF64);
  ExpectPromise(layer, Inputs({kHeads, kHeads, kDim, false, false, false}, 2, 1.6));
}

}  // namespace
}  // namespace fox::testing
