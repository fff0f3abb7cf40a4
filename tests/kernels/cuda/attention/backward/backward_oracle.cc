// The oracle's gradients, and the sums over pairs that say what rounding does to them. See
// backward_oracle.h.
#include "tests/kernels/cuda/attention/backward/backward_oracle.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "kernels/cuda/attention/varlen/state.h"
#include "tests/kernels/varlen_oracle.h"

namespace fox::cuda::testing {
namespace {

constexpr double kLog2E = 1.4426950408889634;

double Dot(const double* a, const double* b, int count) {
  double sum = 0;
  for (int m = 0; m < count; ++m) sum += a[m] * b[m];
  return sum;
}

// ||x||^2 over a head.
double SquareOf(const VarlenInputs& inputs, const VarlenArray<double>& x, int head, int dim) {
  double sum = 0;
  for (int b = 0; b < inputs.batch; ++b) {
    for (int t = 0; t < inputs.tokens; ++t) sum += Dot(&x.At(b, t, head), &x.At(b, t, head), dim);
  }
  return sum;
}

}  // namespace

BackwardOracle::BackwardOracle(VarlenInputs& inputs, std::vector<int32_t> first_key)
    : inputs_(inputs),
      first_key_(std::move(first_key)),
      c_(inputs.num_rows()),
      lse_(inputs.num_rows()),
      noise_(static_cast<size_t>(inputs.shape.q_heads)) {
  VarlenCumulativeGates(inputs.params(), c_.data());
  VarlenForwardFloat64(inputs.params(), first_key_.data(), lse_.data());
  VarlenBackwardFloat64(inputs.params(), first_key_.data());
  const int group = inputs.shape.q_heads / inputs.shape.kv_heads, dim = inputs.shape.head_dim;
  double tile_decay = 0;
  for (int s = 0; s < inputs.num_seqs(); ++s) {
    for (int h = 0; h < inputs.shape.q_heads; ++h) {
      const Squares squares = AddNoise(s, h);
      Squares &own = noise_[static_cast<size_t>(h)],
              &of_keys = noise_[static_cast<size_t>(h / group * group)];
      own.dq += squares.dq;
      own.gates += squares.gates;
      of_keys.dk += squares.dk;
      of_keys.dv += squares.dv;
      for (int i = 0; i < inputs.length(s); ++i) {
        const double first = c_[inputs.RowIndex(s, i / kVarlenTile * kVarlenTile, h)];
        tile_decay = std::max(tile_decay, first - c_[inputs.RowIndex(s, i, h)]);
      }
    }
  }
  for (int h = 0; h < inputs.shape.q_heads; ++h) {
    Squares& own = noise_[static_cast<size_t>(h)];
    own.dq += SquareOf(inputs, inputs.dq, h, dim);
    if (h % group != 0) continue;
    own.dk += SquareOf(inputs, inputs.dk, h / group, dim);
    own.dv += SquareOf(inputs, inputs.dv, h / group, dim);
  }
  // Key bias, row bias, their difference and lse: roundings of 2^-24 of the decay each.
  rounding_ = std::hypot(0x1p-9, 0x1p-22 * kLog2E * tile_decay);
}

BackwardOracle::Squares BackwardOracle::AddNoise(int seq, int head) {
  const int dim = inputs_.shape.head_dim, b = inputs_.BatchOf(seq);
  const int kv_head = head / (inputs_.shape.q_heads / inputs_.shape.kv_heads);
  const int begin = inputs_.begin[static_cast<size_t>(seq)], length = inputs_.length(seq);
  const double square_scale = inputs_.scale * inputs_.scale;
  Squares squares;
  double d_logit_sum = 0;
  for (int i = 0; i < length; ++i) {
    const size_t row = inputs_.RowIndex(seq, i, head);
    const double* q = &inputs_.q.At(b, begin + i, head);
    const double* d_out = &inputs_.d_out.At(b, begin + i, head);
    const double* out = &inputs_.out.At(b, begin + i, head);
    const double delta = Dot(d_out, out, dim);
    const double q_square = Dot(q, q, dim), d_out_square = Dot(d_out, d_out, dim);
    double eta_square = 0, before = 0;  // before: the weight of the keys before j
    for (int m = 0; m < dim; ++m) eta_square += d_out[m] * d_out[m] * out[m] * out[m];
    for (int j = first_key_[row]; j <= i; ++j) {
      const double* k = &inputs_.k.At(b, begin + j, kv_head);
      const double* v = &inputs_.v.At(b, begin + j, kv_head);
      squares.gates += eta_square * before * before;
      const double decay = c_[row] - c_[inputs_.RowIndex(seq, j, head)];
      const double p = std::exp(Dot(q, k, dim) * inputs_.scale + decay - lse_[row]);
      const double d_logit = p * (Dot(d_out, v, dim) - delta);
      const double square = d_logit * d_logit + eta_square * p * p;
      squares.dq += square_scale * square * Dot(k, k, dim);
      squares.dk += square_scale * square * q_square;
      squares.dv += p * p * d_out_square;
      d_logit_sum += std::fabs(d_logit);
      before += p;
    }
  }
  d_logit_sums_.push_back(d_logit_sum);
  return squares;
}

void BackwardOracle::ExpectGradients(const VarlenArray<double>& dq, const VarlenArray<double>& dk,
                                     const VarlenArray<double>& dv,
                                     const VarlenArray<double>& d_log_fgate, bool cancels) const {
  const int group = inputs_.shape.q_heads / inputs_.shape.kv_heads, dim = inputs_.shape.head_dim;
  for (int h = 0; h < inputs_.shape.q_heads; ++h) {
    const Squares& noise = noise_[static_cast<size_t>(h)];
    const auto allowed = [&](double square) { return 2 * rounding_ * std::sqrt(square); };
    ExpectHead("dq", dq, inputs_.dq, h, dim, allowed(noise.dq), cancels);
    ExpectHead("d_log_fgate", d_log_fgate, inputs_.d_log_fgate, h, 1, allowed(noise.gates),
               cancels);
    if (h % group != 0) continue;
    ExpectHead("dk", dk, inputs_.dk, h / group, dim, allowed(noise.dk), cancels);
    ExpectHead("dv", dv, inputs_.dv, h / group, dim, allowed(noise.dv), cancels);
  }
}

void BackwardOracle::ExpectHead(const std::string& name, const VarlenArray<double>& actual,
                                const VarlenArray<double>& wanted, int head, int dim,
                                double allowed, bool cancels) const {
  double error = 0;
  for (int b = 0; b < inputs_.batch; ++b) {
    for (int t = 0; t < inputs_.tokens; ++t) {
      for (int m = 0; m < dim; ++m) {
        const double difference = actual.At(b, t, head, m) - wanted.At(b, t, head, m);
        error += difference * difference;
      }
    }
  }
  error = std::sqrt(error);
  const double norm = std::sqrt(SquareOf(inputs_, wanted, head, dim));
  EXPECT_LE(error, cancels ? allowed : std::min(allowed, 1e-2 * norm))
      << name << " of head " << head << ", whose norm is " << norm;
}

}  // namespace fox::cuda::testing
