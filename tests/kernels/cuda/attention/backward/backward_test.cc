// BackwardSm80 and BackwardSm90 against float64 gradients, for every case of device_varlen.h and
// more. Out and lse are the oracle's, rounded, so that no forward kernel is needed.
#include "kernels/cuda/attention/backward/backward.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cuda/attention/varlen/kernels.h"
#include "tests/kernels/cuda/attention/varlen/device_varlen.h"
#include "tests/kernels/cuda/device_cache.h"

namespace fox::cuda::testing {
namespace {

using BackwardKernel = decltype(&BackwardSm80);

constexpr double kLog2E = 1.4426950408889634;

double Dot(const double* a, const double* b, int count) {
  double sum = 0;
  for (int m = 0; m < count; ++m) sum += a[m] * b[m];
  return sum;
}

// ||x||^2 over a head.
double SquareOf(const VarlenInputs& inputs, const VarlenArray<double>& x, int head) {
  double sum = 0;
  for (int b = 0; b < inputs.batch; ++b) {
    for (int t = 0; t < inputs.tokens; ++t) {
      sum += Dot(&x.At(b, t, head), &x.At(b, t, head), x.head_dim);
    }
  }
  return sum;
}

// How far gradients of a kernel in bf16 may be from those in float64.
//
// A number rounded to bf16 is off by at most 2^-8 of itself, 0.83 2^-9 in the mean square. Kernels
// round P for dV, dS for dQ and dK, and dq, dk, dv, and read an out that was rounded, by which
// delta_i = dO_i.out_i is off by as much of eta_i, eta_i^2 = sum_m (dO_im out_im)^2, and every
// dS_ij by P_ij of that. The float32 exponent of P adds the rounding of what decays within a tile.
// Errors of different roundings are independent, so their squares add up: a gradient's error is
// expected to be 2^-9 of the root of
//   dq     scale^2 sum_ij |k_j|^2 (dS_ij^2 + eta_i^2 P_ij^2) + |dq|^2
//   dk     scale^2 sum_ij |q_i|^2 (dS_ij^2 + eta_i^2 P_ij^2) + |dk|^2
//   dv     sum_ij |dO_i|^2 P_ij^2 + |dv|^2
//   gates  sum_t sum_{i >= t} eta_i^2 (sum_{j < t} P_ij)^2
// which is close to the gradient's own norm, for gates half of it, unless terms cancel. Twice that
// is allowed, and at most a hundredth of the norm.
class BackwardOracle {
 public:
  // Computes out and the gradients of `inputs`, of which q, k, v and d_out must not change any
  // more. first_key [batch][tokens][q_heads]: the first key that a row sees.
  BackwardOracle(VarlenInputs& inputs, std::vector<int32_t> first_key);

  // [batch][tokens][q_heads], natural units: log of the denominators, each row's own decay
  // included.
  const std::vector<double>& lse() const { return lse_; }
  // Compares gradients, tokens of no sequence included, head by head. `cancels`: their terms may
  // cancel so far that a hundredth of what remains is less than rounding.
  void ExpectGradients(const DeviceVarlen& device, bool cancels) const;

 private:
  struct Squares {
    double dq = 0, dk = 0, dv = 0, gates = 0;
  };
  Squares AddNoise(int seq, int head);
  void ExpectHead(const std::string& name, const VarlenArray<double>& actual,
                  const VarlenArray<double>& wanted, int head, double allowed, bool cancels) const;

  VarlenInputs& inputs_;
  const std::vector<int32_t> first_key_;
  std::vector<double> c_, lse_;
  std::vector<Squares> noise_;  // [q_heads], dk and dv in the first head of a group
  double rounding_ = 0;
};

BackwardOracle::BackwardOracle(VarlenInputs& inputs, std::vector<int32_t> first_key)
    : inputs_(inputs),
      first_key_(std::move(first_key)),
      c_(inputs.CumulativeGates()),
      lse_(inputs.Forward(first_key_)),
      noise_(static_cast<size_t>(inputs.shape.q_heads)) {
  inputs.Backward(first_key_);
  const int group = inputs.shape.q_heads / inputs.shape.kv_heads;
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
    own.dq += SquareOf(inputs, inputs.dq, h);
    if (h % group != 0) continue;
    own.dk += SquareOf(inputs, inputs.dk, h / group);
    own.dv += SquareOf(inputs, inputs.dv, h / group);
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
      before += p;
    }
  }
  return squares;
}

void BackwardOracle::ExpectGradients(const DeviceVarlen& device, bool cancels) const {
  const int group = inputs_.shape.q_heads / inputs_.shape.kv_heads;
  const auto expect = [&](const std::string& name, const VarlenArray<double>& actual,
                          const VarlenArray<double>& wanted, double Squares::*noise) {
    for (int h = 0; h < wanted.heads; ++h) {
      const size_t head =
          static_cast<size_t>(h * (wanted.heads < inputs_.shape.q_heads ? group : 1));
      const double allowed = 2 * rounding_ * std::sqrt(noise_[head].*noise);
      ExpectHead(name, actual, wanted, h, allowed, cancels);
    }
  };
  expect("dq", device.Dq(), inputs_.dq, &Squares::dq);
  expect("dk", device.Dk(), inputs_.dk, &Squares::dk);
  expect("dv", device.Dv(), inputs_.dv, &Squares::dv);
  expect("d_log_fgate", device.DLogFgate(), inputs_.d_log_fgate, &Squares::gates);
}

void BackwardOracle::ExpectHead(const std::string& name, const VarlenArray<double>& actual,
                                const VarlenArray<double>& wanted, int head, double allowed,
                                bool cancels) const {
  double error = 0;
  for (int b = 0; b < inputs_.batch; ++b) {
    for (int t = 0; t < inputs_.tokens; ++t) {
      for (int m = 0; m < wanted.head_dim; ++m) {
        const double difference = actual.At(b, t, head, m) - wanted.At(b, t, head, m);
        error += difference * difference;
      }
    }
  }
  error = std::sqrt(error);
  const double norm = std::sqrt(SquareOf(inputs_, wanted, head));
  EXPECT_LE(error, cancels ? allowed : std::min(allowed, 1e-2 * norm))
      << name << " of head " << head << ", whose norm is " << norm;
}

// Computes the gradients by the kernel and the kernels around it.
void RunBackward(BackwardKernel kernel, bool deterministic, const VarlenInputs& inputs,
                 const BackwardOracle& oracle, DeviceVarlen& varlen) {
  varlen.PoisonOutputs();
  varlen.SetOut(inputs.out);
  varlen.SetLse(oracle.lse());
  varlen.params().deterministic = deterministic;
  const VarlenAttentionParams& params = varlen.params();
  const VarlenState& state = varlen.state();
  const VarlenGradients& gradients = varlen.gradients();
  ASSERT_EQ(PrepareGradients(params, state, gradients, nullptr), cudaSuccess);
  ASSERT_EQ(kernel(params, state, gradients, nullptr), cudaSuccess);
  ASSERT_EQ(FinishGradients(params, state, gradients, nullptr), cudaSuccess);
  ASSERT_EQ(ZeroGradientPadding(params, nullptr), cudaSuccess);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
}

std::vector<VarlenCase> BackwardCases() {
  // Weights follow the gates alone, and dq is zero but for rounding.
  VarlenCase equal_keys = WithHeads(BatchCase({300, 130}), 2, 1, 0, {3, 9});
  equal_keys.name = "EqualKeys";
  equal_keys.equal_keys = true;
  VarlenCase paper = WithHeads(PackedCase({1000, 129, 700}), 4, 2, 0, {-1, 0, 1, 9});
  paper.name = "Paper";
  paper.acp = AcpMode::kPaper;
  VarlenCase certified = paper;
  certified.name = "Certified";
  certified.acp = AcpMode::kCertified;
  // More key tiles than a GPU has SMs: blocks go from one to the next.
  std::vector<int> lengths(72);
  for (size_t i = 0; i < lengths.size(); ++i) lengths[i] = 1 + static_cast<int>(i * 83 % 211);
  VarlenCase many = WithHeads(PackedCase(lengths), 4, 4, 0, {0, 3, 5, 9});
  many.name = "ManyTiles";
  return VarlenCases({equal_keys, paper, certified, many});
}

// All gradients against float64, in both modes, and under AcpMode::kPaper against the gradients of
// attention that was not pruned.
void ExpectBackward(BackwardKernel kernel, const VarlenCase& c) {
  const bool cancels = c.equal_keys || c.strong_gate_rate > 0;
  VarlenInputs inputs(c);
  DeviceVarlen varlen(inputs, c.acp);
  varlen.Schedule();
  const std::vector<int32_t> first_key = varlen.FirstKeys();
  const BackwardOracle oracle(inputs, first_key);
  for (const bool deterministic : {false, true}) {
    SCOPED_TRACE(deterministic ? "deterministic" : "fast");
    RunBackward(kernel, deterministic, inputs, oracle, varlen);
    oracle.ExpectGradients(varlen, cancels);
  }
  if (c.acp == AcpMode::kPaper) {
    SCOPED_TRACE("not pruned");
    const auto is_odd_page = [](int32_t key) { return key % kVarlenTile != 0; };
    ASSERT_TRUE(std::any_of(first_key.begin(), first_key.end(), is_odd_page));
    VarlenInputs copy = inputs;
    const BackwardOracle unpruned(copy, std::vector<int32_t>(first_key.size()));
    unpruned.ExpectGradients(varlen, false);
  }
}

// Deterministic runs give the same bits, others differ only by the order of sums in float32.
void ExpectDeterminism(BackwardKernel kernel, int head_dim) {
  VarlenInputs inputs(WithHeads(PackedCase({1000, 300, 65, 700}), 8, 4, head_dim, {3, 9, 5, 1}));
  DeviceVarlen varlen(inputs);
  varlen.Schedule();
  const BackwardOracle oracle(inputs, varlen.FirstKeys());
  RunBackward(kernel, true, inputs, oracle, varlen);
  const std::vector<uint8_t> bits = varlen.OutputBits();
  const auto gradients = [&] {
    return std::vector{varlen.Dq(), varlen.Dk(), varlen.Dv(), varlen.DLogFgate()};
  };
  const std::vector<VarlenArray<double>> want = gradients();
  for (int run = 0; run < 10; ++run) {
    RunBackward(kernel, true, inputs, oracle, varlen);
    EXPECT_EQ(varlen.OutputBits(), bits) << "run " << run;
  }
  RunBackward(kernel, false, inputs, oracle, varlen);
  // In another order sums differ by some 2^-22 of their terms. That carries one number of bf16 in
  // 2^12 over to its neighbour, by 2^-8 of itself: together, 2^-14.
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_LE(RelativeError(gradients()[i].values, want[i].values), 0x1p-12) << i;
  }
}

class BackwardTest : public ::testing::TestWithParam<VarlenCase> {};

TEST_P(BackwardTest, Sm80MatchesFloat64) { ExpectBackward(BackwardSm80, GetParam()); }

TEST_P(BackwardTest, Sm90MatchesFloat64) {
  if (!HasBackwardSm90()) GTEST_SKIP() << "no code for sm_90a, or no such device";
  ExpectBackward(BackwardSm90, GetParam());
}

INSTANTIATE_TEST_SUITE_P(Cases, BackwardTest, ::testing::ValuesIn(BackwardCases()),
                         CaseName<VarlenCase>);

class BackwardHeadDimTest : public ::testing::TestWithParam<int> {};

TEST_P(BackwardHeadDimTest, Sm80IsDeterministic) { ExpectDeterminism(BackwardSm80, GetParam()); }

TEST_P(BackwardHeadDimTest, Sm90IsDeterministic) {
  if (!HasBackwardSm90()) GTEST_SKIP() << "no code for sm_90a, or no such device";
  ExpectDeterminism(BackwardSm90, GetParam());
}

INSTANTIATE_TEST_SUITE_P(HeadDims, BackwardHeadDimTest, ::testing::Values(32, 64, 128));

}  // namespace
}  // namespace fox::cuda::testing
