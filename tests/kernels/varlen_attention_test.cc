// The oracle of varlen attention against finite differences and what must hold in exact arithmetic.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/kernels/varlen_inputs.h"
#include "tests/kernels/varlen_oracle.h"

namespace fox::testing {
namespace {

// sum of out * d_out, whose gradients VarlenBackwardFloat64 computes.
double Loss(VarlenInputs& inputs, const std::vector<int32_t>& first_key) {
  VarlenForwardFloat64(inputs.params(), first_key.empty() ? nullptr : first_key.data());
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
  VarlenBackwardFloat64(inputs.params(), first_key.empty() ? nullptr : first_key.data());
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
  std::vector<double> lse(inputs.num_rows());
  VarlenForwardFloat64(inputs.params(), nullptr, lse.data());
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

// A sequence computes the same wherever it lies, and tokens of no sequence get zeros.
TEST(VarlenAttentionTest, PackingChangesNothing) {
  const std::vector<int> lengths = {65, 0, 7, 64};
  VarlenCase packed_shape = Small(PackedCase({64, 7, 0, 65}), 4, 1);
  packed_shape.tokens = 140;
  VarlenInputs rows(Small(BatchCase(lengths), 4, 1)), packed(packed_shape);
  using I = VarlenInputs;
  const auto place = [&](int s, int i) { return packed.begin[static_cast<size_t>(3 - s)] + i; };
  for (const auto member : {&I::q, &I::k, &I::v, &I::log_fgate, &I::d_out}) {
    rows.ForEachToken([&](int s, int b, int t, int i) {
      for (int h = 0; h < (rows.*member).heads; ++h) {
        std::copy_n(&(rows.*member).At(b, t, h), (rows.*member).head_dim,
                    &(packed.*member).At(0, place(s, i), h));
      }
    });
  }
  for (I* inputs : {&rows, &packed}) {
    VarlenForwardFloat64(inputs->params());
    VarlenBackwardFloat64(inputs->params());
  }
  for (const auto member : {&I::out, &I::dq, &I::dk, &I::dv, &I::d_log_fgate}) {
    for (int h = 0; h < (rows.*member).heads; ++h) {
      rows.ForEachToken([&](int s, int b, int t, int i) {
        EXPECT_EQ((packed.*member).At(0, place(s, i), h), (rows.*member).At(b, t, h));
      });
      for (int t = 136; t < 140; ++t) EXPECT_EQ((packed.*member).At(0, t, h), 0);
      EXPECT_EQ((rows.*member).At(1, 0, h), 0);
    }
  }
}

TEST(VarlenAttentionTest, WholeRowsNeedNoRanges) {
  VarlenInputs inputs(Small(BatchCase({70, 70})));
  VarlenForwardFloat64(inputs.params());
  VarlenBackwardFloat64(inputs.params());
  const VarlenInputs given = inputs;
  VarlenAttentionParams params = inputs.params();
  params.seqs = {.count = 2};
  using I = VarlenInputs;
  for (const auto member : {&I::out, &I::dq, &I::dk, &I::dv, &I::d_log_fgate}) {
    (inputs.*member).values.assign((inputs.*member).values.size(), NAN);
  }
  VarlenForwardFloat64(params);
  VarlenBackwardFloat64(params);
  for (const auto member : {&I::out, &I::dq, &I::dk, &I::dv, &I::d_log_fgate}) {
    EXPECT_EQ((inputs.*member).InOrder(), (given.*member).InOrder());
  }
}

// Rows that see all but a prefix of little mass lose that much of their denominator.
TEST(VarlenAttentionTest, PruningLosesTheMassOfWhatIsPruned) {
  VarlenInputs inputs(Small(BatchCase({90})));
  std::vector<int32_t> first_key(inputs.num_rows());
  first_key[inputs.RowIndex(0, 80, 1)] = 79;
  std::vector<double> full(inputs.num_rows()), pruned(inputs.num_rows()), c(inputs.num_rows());
  VarlenForwardFloat64(inputs.params(), nullptr, full.data());
  VarlenForwardFloat64(inputs.params(), first_key.data(), pruned.data());
  VarlenCumulativeGates(inputs.params(), c.data());
  double seen = 0;
  for (int j = 79; j <= 80; ++j) {
    double dot = 0;
    for (int m = 0; m < 4; ++m) dot += inputs.q.At(0, 80, 1, m) * inputs.k.At(0, j, 1, m);
    seen +=
        std::exp(dot * inputs.scale + c[inputs.RowIndex(0, 80, 1)] - c[inputs.RowIndex(0, j, 1)]);
  }
  const size_t row = inputs.RowIndex(0, 80, 1);
  EXPECT_LT(pruned[row], full[row]);
  EXPECT_NEAR(pruned[row], std::log(seen), 1e-12);
  EXPECT_EQ(pruned[row + 1], full[row + 1]);
}

}  // namespace
}  // namespace fox::testing
