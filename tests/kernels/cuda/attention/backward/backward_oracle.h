// Gradients of varlen attention in float64, and how far those of a kernel in bf16 may be from them.
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
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tests/kernels/varlen_inputs.h"

namespace fox::cuda::testing {

using ::fox::testing::VarlenArray;
using ::fox::testing::VarlenInputs;

class BackwardOracle {
 public:
  // Computes out and the gradients of `inputs`, of which q, k, v and d_out must not change any
  // more. first_key [batch][tokens][q_heads]: the first key that a row sees.
  BackwardOracle(VarlenInputs& inputs, std::vector<int32_t> first_key);

  // [batch][tokens][q_heads], natural units: the cumulative gates; log of the denominators, each
  // row's own decay included.
  const std::vector<double>& c() const { return c_; }
  const std::vector<double>& lse() const { return lse_; }
  // sum_ij |dS_ij| of a sequence and query head.
  double d_logit_sum(int seq, int head) const {
    return d_logit_sums_[static_cast<size_t>(seq * inputs_.shape.q_heads + head)];
  }

  // Compares gradients, tokens of no sequence included, head by head. `cancels`: their terms may
  // cancel so far that a hundredth of what remains is less than rounding.
  void ExpectGradients(const VarlenArray<double>& dq, const VarlenArray<double>& dk,
                       const VarlenArray<double>& dv, const VarlenArray<double>& d_log_fgate,
                       bool cancels) const;

 private:
  struct Squares {
    double dq = 0, dk = 0, dv = 0, gates = 0;
  };
  Squares AddNoise(int seq, int head);
  void ExpectHead(const std::string& name, const VarlenArray<double>& actual,
                  const VarlenArray<double>& wanted, int head, int dim, double allowed,
                  bool cancels) const;

  VarlenInputs& inputs_;
  const std::vector<int32_t> first_key_;
  std::vector<double> c_, lse_, d_logit_sums_;
  std::vector<Squares> noise_;  // [q_heads], dk and dv in the first head of a group
  double rounding_ = 0;
};

}  // namespace fox::cuda::testing
