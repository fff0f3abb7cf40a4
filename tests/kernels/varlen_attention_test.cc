// The oracle of varlen attention against its definition and finite differences. (Its layouts,
// ranges and pruning are those of the kernels that are compared with it.)
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/kernels/varlen_inputs.h"

namespace fox::testing {
namespace {

// sum of out * d_out, whose gradients VarlenInputs::Backward computes.
double Loss(VarlenInputs& inputs, const std::vector<int32_t>& first_key) {
  inputs.Forward(first_key);
  double loss = 0;
  inputs.ForEachToken([&](int, int b, int t, int) {
    for (int h = 0; h < inputs.shape.q_heads; ++h) {
      for (int m = 0; m < inputs.shape.head_dim; ++m) {
        loss += inputs.out.At(b, t, h, m) * inputs.d_out.At(b, t, h, m);
      }
    }
  });
  return loss;
}

// Central differences err by h^2 f'''/6, some 1e-10 here, and by the rounding of the loss over h,
// 1e-16 * 100 / 1e-5.
void ExpectDerivatives(VarlenInputs& inputs, VarlenArray<double> VarlenInputs::*input,
                       const VarlenArray<double> VarlenInputs::*gradient, int heads, int count,
                       const std::vector<int32_t>& first_key) {
  constexpr double kStep = 1e-5;
  inputs.ForEachToken([&](int s, int b, int t, int i) {
    for (int h = 0; h < heads && (inputs.length(s) <= 8 || i % 21 == 0); ++h) {
      const int m = i % count;
      double& x = (inputs.*input).At(b, t, h, m);
      const double at = x;
      x = at + kStep;
      const double above = Loss(inputs, first_key);
      x = at - kStep;
      const double below = Loss(inputs, first_key);
      x = at;
      EXPECT_NEAR((inputs.*gradient).At(b, t, h, m), (above - below) / (2 * kStep), 1e-8)
          << "sequence " << s << " token " << i << " head " << h;
    }
  });
}

void ExpectAllDerivatives(const VarlenCase& shape, int pruned_keys = 0) {
  VarlenInputs inputs(shape);
  std::vector<int32_t> first_key;
  if (pruned_keys > 0) {
    first_key.resize(inputs.num_rows());
    inputs.ForEachToken([&](int s, int, int, int i) {
      for (int h = 0; h < shape.q_heads; ++h) {
        first_key[inputs.RowIndex(s, i, h)] = std::max(0, i - pruned_keys);
      }
    });
  }
  inputs.Backward(first_key);
  using I = VarlenInputs;
  const int dim = shape.head_dim;
  ExpectDerivatives(inputs, &I::q, &I::dq, shape.q_heads, dim, first_key);
  ExpectDerivatives(inputs, &I::k, &I::dk, shape.kv_heads, dim, first_key);
  ExpectDerivatives(inputs, &I::v, &I::dv, shape.kv_heads, dim, first_key);
  ExpectDerivatives(inputs, &I::log_fgate, &I::d_log_fgate, shape.q_heads, 1, first_key);
}

VarlenCase Small(VarlenCase shape, int q_heads = 2, int kv_heads = 2) {
  shape.q_heads = q_heads;
  shape.kv_heads = kv_heads;
  shape.head_dim = 4;
  return shape;
}

TEST(VarlenAttentionTest, GradientsAreDerivatives) {
  ExpectAllDerivatives(Small(BatchCase({1, 2, 0, 63, 64, 65})));
}

TEST(VarlenAttentionTest, GradientsOfPackedSequencesAndGroupedHeads) {
  VarlenCase shape = Small(PackedCase({1, 2, 0, 63, 64, 65}), 4, 2);
  shape.head_first = true;
  shape.padding = 3;
  shape.tokens = 200;
  ExpectAllDerivatives(shape);
}

TEST(VarlenAttentionTest, GradientsOfPrunedRows) {
  ExpectAllDerivatives(Small(PackedCase({70, 30})), 17);
}

// Every sum over j written out again for one row, so that forward does not only agree with itself.
TEST(VarlenAttentionTest, ForwardIsTheDefinition) {
  VarlenInputs inputs(Small(PackedCase({3, 40}), 4, 2));
  const std::vector<double> lse = inputs.Forward();
  const int row = 3 + 30, head = 3;
  double sum = 0, out = 0, decay = 0;
  for (int j = row; j >= 3; --j) {
    double dot = 0;
    for (int m = 0; m < 4; ++m) dot += inputs.q.At(0, row, head, m) * inputs.k.At(0, j, 1, m);
    const double term = std::exp(dot * inputs.scale + decay);
    sum += term;
    out += term * inputs.v.At(0, j, 1, 2);
    decay += inputs.log_fgate.At(0, j, head);
  }
  EXPECT_NEAR(lse[inputs.RowIndex(1, 30, head)], std::log(sum), 1e-13);
  EXPECT_NEAR(inputs.out.At(0, row, head, 2), out / sum, 1e-13);
}

}  // namespace
}  // namespace fox::testing
