// Bounds on logits from weights against the worst queries that the weights can make. The promise
// that depends on them is in certified_promise_test.cc.
#include "models/query_bounds.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/query_bound.h"
#include "tests/kernels/head_sequence.h"
#include "tests/models/bounded_layer.h"

namespace fox::testing {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

class QkNormBoundsTest : public QueryBounds {
 protected:
  NormedLayer MakeLayer(const ModelConfig& shape, bool per_head, DType dtype) {
    NormedLayer layer{.config = shape};
    layer.config.qk_norm = true;
    layer.config.qk_norm_per_head = per_head;
    const int64_t q_size = per_head ? shape.hidden_size : shape.head_dim;
    const int64_t k_size = per_head ? shape.kv_size() : shape.head_dim;
    Vector gq = Gaussian(q_size, 0.7), gk = Gaussian(k_size, 0.7);
    gq[rng_() % gq.size()] = -6;  // outliers, as trained models have them
    gk[rng_() % gk.size()] = 5;
    layer.q_norm = Tensor(gq, {q_size}, dtype);
    layer.k_norm = Tensor(gk, {k_size}, dtype);
    return layer;
  }

  // Rounds a key as a page of this type does, if that can matter.
  static void Store(Vector& key, DType pages) {
    if (pages == DType::kE4M3) RoundToE4M3(key.data(), static_cast<int64_t>(key.size()));
  }

  // Attacks the bound of one key; returns the largest share of a(k) that a query reaches.
  double Attack(const NormedLayer& layer, const QueryBound& bound, DType pages, int head,
                bool spike) {
    const int d = layer.config.head_dim;
    const double root_d = std::sqrt(d);
    const double *gq = layer.Gq(head), *gk = layer.Gk(head);
    Vector khat = Gaussian(d);
    const auto quieter = [](double a, double b) { return std::abs(a) < std::abs(b); };
    const auto loudest = static_cast<size_t>(std::max_element(gk, gk + d, quieter) - gk);
    if (spike) khat.assign(khat.size(), 0.0);
    if (spike) khat[rng_() % 2 == 0 ? loudest : rng_() % khat.size()] = 1;
    ScaleTo(root_d, khat);
    Vector key(khat);
    for (size_t m = 0; m < key.size(); ++m) key[m] *= FactorOf(layer.config) * gk[m];
    CheckSelf(layer, bound, pages, head, khat);
    if (layer.config.use_rope) RotateAnyhow(key);
    Store(key, pages);
    const double a = EvaluateBound(bound, head, d, key.data(), 1);
    EXPECT_EQ(EvaluateBound(bound, head, d, key.data(), -1), a);
    double worst = 0;
    for (int kind = 0; kind < 3; ++kind) {
      Vector q = Gaussian(d);
      for (size_t m = 0; kind == 1 && m < q.size(); ++m) q[m] = gq[m] * key[m];
      if (kind == 2) q.assign(q.size(), 0.0);
      if (kind == 2) q[rng_() % q.size()] = 1;
      ScaleTo(root_d, q);
      for (size_t m = 0; m < q.size(); ++m) q[m] *= FactorOf(layer.config) * gq[m];
      if (layer.config.use_rope) q = TurnedTowards(q, key);
      for (double& x : q) x = ToBf16(x * std::pow(1 + 1.0 / 256, 2));  // as if rounded up thrice
      const double s = std::abs(Dot(q.data(), key.data(), d)) / root_d;
      EXPECT_LE(s, a) << kind;
      EXPECT_LE(s, bound.max_logit_bound[head]) << kind;
      worst = std::max(worst, s / a);
    }
    return worst;
  }

  // Tries to break the bound of a row's own key. Both have the same angle, so rotation matters only
  // to rounding. An adverse key opposes the query as far as signs allow.
  void CheckSelf(const NormedLayer& layer, const QueryBound& bound, DType pages, int head,
                 const Vector& khat) {
    const int d = layer.config.head_dim;
    for (bool adverse : {false, true}) {
      Vector qhat = adverse ? khat : Gaussian(d);
      ScaleTo(std::sqrt(d), qhat);
      Vector q(qhat), key(khat);
      for (int m = 0; m < d; ++m) {
        const auto at = static_cast<size_t>(m);
        q[at] *= FactorOf(layer.config) * layer.Gq(head)[m];
        key[at] *= FactorOf(layer.config) * layer.Gk(head)[m];
        if (adverse) key[at] = -std::copysign(key[at], q[at]);
      }
      if (layer.config.use_rope) {
        const std::mt19937_64 angles = rng_;
        RotateAnyhow(q);
        rng_ = angles;
        RotateAnyhow(key);
      }
      Store(key, pages);
      const double s = Dot(q.data(), key.data(), d) / std::sqrt(d);
      EXPECT_GE(s, -bound.self_logit_bound[head]) << adverse;
    }
  }
};

TEST_F(QkNormBoundsTest, NoQueryExceedsThem) {
  for (DType dtype : {DType::kF64, DType::kF32, DType::kBF16}) {
    for (int variant = 0; variant < 64; ++variant) {
      SCOPED_TRACE(::testing::Message() << "type " << static_cast<int>(dtype) << " of " << variant);
      const DType pages = (variant & 32) != 0 ? DType::kE4M3 : DType::kBF16;
      const bool rope = (variant & 1) != 0, capped = (variant & 16) != 0;
      const bool per_head = (variant & 2) != 0 || capped;
      ModelConfig config = Config(4, (variant & 4) != 0 ? 2 : 4, (variant & 8) != 0 ? 64 : 8, rope);
      if (rope && (variant & 6) != 0) config.rope_scaling.attention_factor = 1.5;
      NormedLayer layer = MakeLayer(config, per_head, dtype);
      if (capped) layer.CapNorms();
      const HostQueryBound host = layer.Bound(pages);
      const QueryBound bound = host.view();
      // A rotated key's logit may reach U, while a row's own keeps to B.
      const Vector& largest = rope ? host.max_logit_bound : host.self_logit_bound;
      EXPECT_EQ(host.min_log_gate, MinLogGate(*std::max_element(largest.begin(), largest.end())));
      double worst = 0;
      for (int head = 0; head < 4; ++head) {
        // If both outliers share a dimension, the bounds are equal except for the last bit.
        EXPECT_LE(bound.self_logit_bound[head], bound.max_logit_bound[head] * (1 + 1e-15)) << head;
        for (int key = 0; key < 60; ++key) {
          worst = std::max(worst, Attack(layer, bound, pages, head, key % 3 == 0));
        }
      }
      // The bound is reached except for its allowance for rounding.
      EXPECT_GE(worst, rope && !capped ? 0.6 : 0.95);
    }
  }
}

// A sink bounds the denominator only, and only if keys are bounded.
TEST_F(QkNormBoundsTest, TheSinkOrTheOwnKeyBoundsTheDenominator) {
  const Tensor sinks({-60, 60, 0.5, -2}, {4}, DType::kF32);
  const auto expect = [&](auto layer) {
    const HostQueryBound without = layer.Bound();
    layer.sinks = sinks;
    layer.config.attention_sink = true;
    const HostQueryBound with = layer.Bound();
    for (size_t head = 0; head < 4; ++head) {
      const double expected = std::min(without.self_logit_bound[head], -sinks.values[head]);
      EXPECT_EQ(with.self_logit_bound[head], expected) << head;
    }
    EXPECT_EQ(with.max_logit_bound, without.max_logit_bound);
    EXPECT_EQ(with.max_norm_product, without.max_norm_product);
    EXPECT_EQ(with.min_log_gate, without.min_log_gate);
    layer.config.forget_gate = ForgetGate::kNone;
    EXPECT_EQ(layer.Bound().self_logit_bound, Vector(4, kInfinity));
  };
  NormedLayer layer = MakeLayer(Config(4, 2, 8, true), true, DType::kBF16);
  expect(layer);
  layer.CapNorms();
  expect(layer);
  expect(MakePlainLayer(Config(4, 2, 8, true), true, Rank::kFull, DType::kBF16));
}

TEST_F(QkNormBoundsTest, ClampFollowsTheLargestSelfLogit) {
  NormedLayer layer{.config = Config(2, 2, 4, false)};
  layer.config.qk_norm = true;
  layer.q_norm = Tensor({1, 1, 1, 1, 1, 1, 40, 1}, {8}, DType::kF32);
  layer.k_norm = Tensor({1, 1, 1, 1, 1, 1, 3, 1}, {8}, DType::kF32);
  const HostQueryBound bound = layer.Bound();
  EXPECT_NEAR(bound.self_logit_bound[0], 2, 0.1);
  EXPECT_NEAR(bound.self_logit_bound[1], 240, 8);
  EXPECT_DOUBLE_EQ(bound.min_log_gate, -(2 * bound.self_logit_bound[1] + 40));
}

class WeightBoundsTest : public QueryBounds {
 protected:
  // A key by kind: at random, along the rows' strongest direction, or across it.
  Vector Key(const PlainLayer& layer, int head, int kind) {
    Vector key = Gaussian(layer.config.head_dim);
    for (int power = 0; kind == 1 && power < 8; ++power) {
      key = layer.Query(head, layer.Worst(head, key, 1), false);
    }
    if (kind == 2) {
      // Without the part that a rank-one W reaches.
      const Vector q = layer.Query(head, layer.Worst(head, key, 1), false);
      const double share = Dot(q.data(), key.data(), layer.config.head_dim) /
                           std::max(Dot(q.data(), q.data(), layer.config.head_dim), 1e-300);
      for (size_t m = 0; m < key.size(); ++m) key[m] -= share * q[m];
    }
    return key;
  }

  double Attack(const PlainLayer& layer, const QueryBound& bound, int head, int kind) {
    const int d = layer.config.head_dim;
    const Vector key = Key(layer, head, kind);
    const double high = EvaluateBound(bound, head, d, key.data(), 1);
    const double low = -EvaluateBound(bound, head, d, key.data(), -1);
    double worst = 0;
    for (double sign : {1.0, -1.0, 0.0}) {
      Vector xhat = sign == 0 ? Gaussian(layer.config.hidden_size) : layer.Worst(head, key, sign);
      ScaleTo(std::sqrt(static_cast<double>(layer.config.hidden_size)), xhat);
      for (bool rounded : {false, true}) {
        Vector q = layer.Query(head, xhat, rounded);
        if (layer.config.use_rope) q = TurnedTowards(q, key);
        const double s = Dot(q.data(), key.data(), d) / std::sqrt(d);
        EXPECT_LE(s, high) << sign << " " << rounded;
        EXPECT_GE(s, low) << sign << " " << rounded;
        worst = std::max(worst, high > 0 ? s / high : 0);
      }
    }
    return worst;
  }
};

TEST_F(WeightBoundsTest, NoQueryExceedsThem) {
  for (DType dtype : {DType::kF64, DType::kBF16}) {
    for (int variant = 0; variant < 48; ++variant) {
      SCOPED_TRACE(::testing::Message() << "type " << static_cast<int>(dtype) << " of " << variant);
      const bool rope = (variant & 1) != 0, bias = (variant & 2) != 0;
      const auto rank = static_cast<Rank>(variant / 16);
      ModelConfig config = Config(4, (variant & 4) != 0 ? 2 : 4, (variant & 8) != 0 ? 32 : 6, rope);
      if (rope && (variant & 6) != 0) config.rope_scaling.attention_factor = 1.5;
      const PlainLayer layer = MakePlainLayer(config, bias, rank, dtype);
      const HostQueryBound host = layer.Bound();
      const QueryBound bound = host.view();
      double worst = 0;
      for (int head = 0; head < 4; ++head) {
        EXPECT_EQ(bound.self_logit_bound[head], kInfinity) << head;
        EXPECT_EQ(bound.max_logit_bound[head], kInfinity) << head;
        for (int key = 0; key < 12; ++key) {
          worst = std::max(worst, Attack(layer, bound, head, key % 3));
        }
      }
      if (!rope && (rank != Rank::kZero || bias)) {
        EXPECT_GE(worst, 0.5);
      }
    }
  }
}

// No query meets a key at a logit beyond the product of their norms, and the clamp of the gates
// leaves room for twice that. Values, as keys here, are bounded like them.
TEST_F(WeightBoundsTest, NormProductBoundsLogits) {
  for (int variant = 0; variant < 12; ++variant) {
    SCOPED_TRACE(variant);
    ModelConfig config = Config(4, variant % 2 == 0 ? 4 : 2, 16, false);
    if (variant % 3 == 1) config.rope_scaling.attention_factor = 1.5;
    const bool bias = variant / 2 % 2 == 1;
    const double size = variant / 4 % 3 == 2 ? 200 : 0.5;
    const PlainLayer layer = MakePlainLayer(config, bias, Rank::kFull, DType::kBF16, size);
    const PlainLayer keys = layer.Keys();
    const HostQueryBound host = layer.Bound();
    double worst = 0, reached = 0;
    for (int head = 0; head < 4; ++head) {
      const int kv_head = head / config.group_size();
      Vector along = Gaussian(16), q, k;
      for (int step = 0; step < 20; ++step) {
        k = keys.Query(kv_head, keys.Worst(kv_head, along, 1), true);
        q = layer.Query(head, layer.Worst(head, k, 1), true);
        along = q;
      }
      EXPECT_LE(Norm(q) * Norm(k) / 4, host.max_norm_product[static_cast<size_t>(head)]) << head;
      const double value = Norm(k) / config.rope_scaling.attention_factor;  // which is not rotated
      EXPECT_NEAR(std::log(value), host.log_max_value[static_cast<size_t>(head)] - 1, 1) << head;
      const double s = Dot(q.data(), k.data(), 16) / 4;
      worst = std::max(worst, s / host.max_norm_product[static_cast<size_t>(head)]);
      reached = std::max(reached, s);
    }
    EXPECT_GE(worst, 0.05);
    EXPECT_LE(host.min_log_gate, std::min(-128.0, -(2 * reached + 40)));
  }
}

// Weights, inputs and products that round apart by up to half a unit each, and a key that the exact
// query does not see at all: only the rounding terms are left.
TEST_F(WeightBoundsTest, RoundingAcrossTheNullSpace) {
  const double up = 1 + 1.001 / 256, down = 1 + 0.999 / 256;  // become 1 + 2^-7 and 1
  double worst = 0;
  for (int64_t used = 1; used <= 8; ++used) {
    PlainLayer layer{.config = Config(1, 1, 8, false)};
    Vector weights(64), key(8);
    for (int64_t i = 0; i < 64; ++i) {
      if (i % 8 < used) weights[static_cast<size_t>(i)] = i / 8 % 2 == 0 ? up : down;
    }
    for (size_t m = 0; m < 8; ++m) key[m] = m % 2 == 0 ? down / up : -1;
    layer.q_proj = layer.k_proj = Tensor(weights, {8, 8}, DType::kF64);
    layer.attn_norm = Tensor(Vector(8, 1.0), {8}, DType::kF64);
    const HostQueryBound host = layer.Bound();
    const double a = EvaluateBound(host.view(), 0, 8, key.data(), 1);
    const double largest = std::sqrt(8.0 / static_cast<double>(used));
    for (double x = largest; x > 0.4 * largest; x -= 0x1p-11) {
      Vector xhat(8);
      std::fill_n(xhat.begin(), used, x);
      SCOPED_TRACE(::testing::Message() << used << " inputs of " << x);
      EXPECT_NEAR(Dot(layer.Query(0, xhat, false).data(), key.data(), 8), 0, 1e-12);
      const double s = Dot(layer.Query(0, xhat, true).data(), key.data(), 8) / std::sqrt(8);
      EXPECT_LE(s, a);
      worst = std::max(worst, s / a);
      // The bound holds even if all roundings are as large as possible and in the key's direction:
      // three to bf16, and a float32 sum over 2^15 inputs.
      double all = 0;
      for (int m = 0; m < 8; ++m) {
        const double size = Dot(layer.Row(0, m), xhat.data(), 8) / std::sqrt(8);
        all += (std::pow(1 + 0x1p-8, 3) * (1 + 0x1p-9) - 1) * size *
               std::abs(key[static_cast<size_t>(m)]);
      }
      EXPECT_LE(all, a);
    }
  }
  EXPECT_GE(worst, 0.4);  // the attack is a real one: two roundings of three
}

// ---- The clamp of the forget gates never changes an output of float64 attention without a clamp.

// A query along dimension 0 in each row, a key in token 0 alone, and one gate that is not open.
void ExpectClampChangesNothing(HeadInputs inputs, double query, int key_dim, double key,
                               double gate, const HostQueryBound& host) {
  const HeadShape& shape = inputs.shape;
  for (int64_t row = 0; row < inputs.length; ++row) {
    for (int m = 0; m < 2 * shape.head_dim; ++m) inputs.at(row, m) = 0;
    inputs.at(row, 0) = query;
    inputs.at(row, shape.hidden() + key_dim) = row == 0 ? key : 0;
    inputs.at(row, inputs.gate_column()) = row == 2 ? gate : 20;
  }
  if (shape.qk_norm) SetBounds(inputs);
  CpuOps ops({});
  PagedKvStorage storage(ShapeFor(shape, inputs.length, DType::kF64), ops);
  const QueryBound bound = host.view();
  const HeadOutputs got =
      RunHeads(ops, storage, inputs, {.bound = &bound, .min_log_gate = host.min_log_gate});
  EXPECT_LT(RelativeError(got.out, NaiveAttention(inputs).out), 1e-12) << key << " " << gate;
}

TEST(ClampOfGatesTest, FollowsTheWeightsWithoutQkNorm) {
  constexpr int kDim = 8;
  for (double logit : {10.0, 100.0, 200.0, 3000.0}) {
    // Token 0 is the only one whose hidden state lies along dimension 1.
    PlainLayer layer{Config(1, 1, kDim, false), {}, {}, {}, {}, {}};
    layer.attn_norm = Tensor(Vector(kDim, 1.0), {kDim}, DType::kF64);
    Vector q(kDim * kDim), k(kDim * kDim);
    q[0] = q[1] = 1 / std::sqrt(kDim);
    k[1] = logit;
    layer.q_proj = Tensor(q, {kDim, kDim}, DType::kF64);
    layer.k_proj = Tensor(k, {kDim, kDim}, DType::kF64);
    const HeadShape shape{.q_heads = 1, .kv_heads = 1, .head_dim = kDim, .qk_norm = false};
    for (double gate : {-120.0, -200.0, -1000.0, -10000.0}) {
      ExpectClampChangesNothing(RandomInputs(shape, 8, 1, {20}), 1, 0, logit * std::sqrt(kDim),
                                gate, layer.Bound());
    }
  }
}

// Under RoPE a logit may reach U while s_ii keeps to B: pair 0 turns by one radian a position.
TEST(ClampOfGatesTest, FollowsRotatedKeys) {
  constexpr int kDim = 64, kHalf = 32;
  const HeadShape shape{.q_heads = 1, .kv_heads = 1, .head_dim = kDim, .rope = true};
  for (double gain : {1.0, 4.0, 8.0, 30.0}) {
    NormedLayer layer{Config(1, 1, kDim, true), {}, {}};
    layer.config.qk_norm = true;
    HeadInputs inputs = RandomInputs(shape, 8, 1, {20});
    inputs.q_norm.assign(kDim, 1 / gain);
    inputs.k_norm.assign(kDim, gain);
    std::fill_n(inputs.q_norm.begin(), kHalf, gain);
    std::fill_n(inputs.k_norm.begin(), kHalf, 1 / gain);
    layer.q_norm = Tensor(inputs.q_norm, {kDim}, DType::kF64);
    layer.k_norm = Tensor(inputs.k_norm, {kDim}, DType::kF64);
    for (double gate : {-200.0, -1000.0, -20000.0}) {
      ExpectClampChangesNothing(inputs, 1, kHalf, -1, gate, layer.Bound());
    }
  }
}

}  // namespace
}  // namespace fox::testing