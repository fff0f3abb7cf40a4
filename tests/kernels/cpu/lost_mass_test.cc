// What rows lost to evicted pages: the bound of each row from its parts, and their sums. That the
// bounds hold is part of evict_test.cc.
#include "kernels/paging/lost_mass.h"

#include <gtest/gtest.h>

#include <cmath>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/interface/paged_kv_storage.h"
#include "tests/kernels/head_sequence.h"

namespace fox::testing {
namespace {

HeadShape Grouped(bool output_norm) {
  HeadShape shape{6, 2, 16};
  shape.output_norm = output_norm;
  return shape;
}

HeadInputs Inputs(const HeadShape& shape, int64_t length) {
  return RandomInputs(shape, length, 3, {-1, 0, 1, 2});
}

// The log of |o| for each row and head, |o|^2 = ||o||^2 + d eps, of outputs without a norm.
std::vector<double> LogNorms(const std::vector<double>& out, int head_dim) {
  const auto d = static_cast<size_t>(head_dim);
  std::vector<double> logs;
  for (size_t at = 0; at < out.size(); at += d) {
    double square = static_cast<double>(d) * kNormEps;
    for (size_t m = 0; m < d; ++m) square += out[at + m] * out[at + m];
    logs.push_back(std::log(square) / 2);
  }
  return logs;
}

// A sequence, row by row, and what its rows should have lost by E of the pages, c and lse.
class LostMassTest : public ::testing::TestWithParam<AcpMode> {
 protected:
  void Run(const HeadInputs& inputs) {
    PagedKvStorage storage(ShapeFor(inputs.shape, inputs.length, DType::kF64), ops_);
    const PagedKv& kv = storage.view();
    HeadInputs plain = inputs;  // without the norm, for |o|
    plain.shape.output_norm = false;
    plain.output_norm.clear();
    PagedKvStorage plain_storage(kv.shape, ops_);
    HeadRun run(ops_, kv, inputs, {.acp = GetParam()});
    HeadRun plain_run(ops_, plain_storage.view(), plain, {.acp = GetParam()});
    for (int64_t row = 0; row < inputs.length; ++row) {
      SCOPED_TRACE(row);
      const auto at = inputs.projection.begin() + row * inputs.columns();
      const std::vector<double> projection(at, at + inputs.columns());
      const std::vector<int32_t> first(kv.first_live, kv.first_live + inputs.shape.kv_heads);
      const HeadRun::Result step = run.Step({{0, row}}, projection);
      const HeadRun::Result plain_step = plain_run.Step({{0, row}}, projection);
      Expect(inputs, kv, first, step, LogNorms(plain_step.out, inputs.shape.head_dim));
      if ((row + 1) % kPageTokens == 0) KeepBounds(kv, row / kPageTokens);
    }
    EXPECT_GT(rows_that_lost_, 100);
  }

 private:
  // The gates' rounding is paid for: 2^-22 of a page's offsets, which are below 200.
  static constexpr double kOffsets = 1e-4;

  // E of a page that has become full; it may be evicted, but no one has taken it.
  void KeepBounds(const PagedKv& kv, int64_t page) {
    for (int head = 0; head < kv.shape.q_heads; ++head) {
      const int32_t id = kv.Table(head / kv.shape.group())[page];
      log_mass_bound_.push_back(kv.log_mass_bound[kv.SummaryIndex(id, head % kv.shape.group())]);
    }
  }

  void Expect(const HeadInputs& inputs, const PagedKv& kv, const std::vector<int32_t>& first,
              const HeadRun::Result& step, const std::vector<double>& log_norms) {
    LostMass want;
    for (int head = 0; head < kv.shape.q_heads; ++head) {
      const auto at = static_cast<size_t>(head);
      const int evicted = first[static_cast<size_t>(head / kv.shape.group())];
      if (evicted == 0) continue;
      const double u = inputs.max_logit_bound[at], c = kv.cum_log_f[head];
      double bound = log_mass_bound_[static_cast<size_t>((evicted - 1) * kv.shape.q_heads + head)];
      if (GetParam() == AcpMode::kPaper) bound += u;
      bound += c - step.lse[at] + RowRounding(kv.shape.head_dim, u, c, 0) + kAcpSlack;
      double largest = 0;
      for (int64_t row = 0; row < inputs.length; ++row) {
        double square = 0;
        const int64_t column =
            inputs.shape.hidden() + inputs.shape.kv() + head / kv.shape.group() * kv.shape.head_dim;
        for (int m = 0; m < kv.shape.head_dim; ++m) {
          square += std::pow(inputs.at(row, column + m), 2);
        }
        largest = std::max(largest, square);
      }
      const double shift =
          inputs.shape.output_norm
              ? bound + std::log(largest * std::pow(ProductInflation(inputs.pages), 2)) / 2 -
                    log_norms[at]
              : kNoMass;
      want.Add(bound, shift);
      ++rows_that_lost_;
    }
    const LostMass& got = step.lost_mass[0];
    EXPECT_NEAR(got.sum, want.sum, kOffsets * want.sum);
    EXPECT_NEAR(got.shift_sum, want.shift_sum, kOffsets * want.shift_sum);
    if (want.max_log == kNoMass) {
      EXPECT_EQ(got.max_log, kNoMass);
      return;
    }
    EXPECT_NEAR(got.max_log, want.max_log, kOffsets);
    EXPECT_GE(got.max_log, want.max_log - 1e-9);
    if (inputs.shape.output_norm) {
      EXPECT_NEAR(got.max_log_shift, want.max_log_shift, kOffsets);
    } else {
      EXPECT_EQ(got.max_log_shift, kNoMass);
    }
  }

  CpuOps ops_{{.dtype = DType::kF64, .threads = 1, .audit = nullptr}};
  std::vector<double> log_mass_bound_;  // [pages, q_heads]
  int rows_that_lost_ = 0;
};

TEST_P(LostMassTest, IsTheSumOfEachRowsBounds) { Run(Inputs(Grouped(false), 640)); }
TEST_P(LostMassTest, GrowsBesideASmallOutputBeforeItsNorm) { Run(Inputs(Grouped(true), 640)); }

INSTANTIATE_TEST_SUITE_P(Modes, LostMassTest,
                         ::testing::Values(AcpMode::kPaper, AcpMode::kCertified));

// Rows are told what page ends before their own page have evicted, also by the same step.
TEST(LostMassInChunksTest, ChunksChangeNothing) {
  HeadShape rotated{4, 2, 32, true, true, true, true};
  rotated.output_norm = true;
  for (const HeadShape& shape : {Grouped(true), rotated}) {
    SCOPED_TRACE(shape.head_dim);
    const HeadInputs inputs = Inputs(shape, 900);
    CpuOps ops({.dtype = DType::kF64, .threads = 1});
    const auto run = [&](std::vector<int64_t> chunks) {
      return RunHeads(ops, inputs, {.acp = AcpMode::kCertified, .chunks = std::move(chunks)});
    };
    const LostMass whole = run({}).lost_mass;
    EXPECT_GT(whole.sum, 0);
    for (const std::vector<int64_t>& chunks :
         {std::vector<int64_t>{1}, {64}, {200, 1, 63}, {37}, {128}}) {
      SCOPED_TRACE(chunks[0]);
      const LostMass lost = run(chunks).lost_mass;
      EXPECT_NEAR(lost.sum, whole.sum, 1e-9 * whole.sum);
      EXPECT_NEAR(lost.shift_sum, whole.shift_sum, 1e-9 * whole.shift_sum);
      EXPECT_NEAR(lost.max_log, whole.max_log, 1e-9);
      EXPECT_NEAR(lost.max_log_shift, whole.max_log_shift, 1e-9);
    }
  }
}

// Old keys along all queries with a value of this size, a gate that leaves them e^-10 at most, and
// values of 0 behind it, so that an output norm makes much of what is left (acp.md section 7).
HeadInputs SmallOutputs(double value, double log_f) {
  HeadShape shape{1, 1, 16};
  shape.output_norm = true;
  HeadInputs inputs = RandomInputs(shape, 248, 5, {20});
  inputs.q_norm.assign(16, 0.75);
  inputs.k_norm.assign(16, 1.0);
  inputs.output_norm.assign(16, 1.0);
  SetBounds(inputs);
  for (int64_t row = 0; row < inputs.length; ++row) {
    for (int m = 0; m < 16; ++m) {
      inputs.at(row, m) = m % 3 == 0 ? 1 : -1;
      inputs.at(row, 16 + m) = row < kPageTokens ? inputs.at(row, m) : 0;
      inputs.at(row, 32 + m) = row < kPageTokens && m == 7 ? value : 0;
    }
    inputs.at(row, inputs.gate_column()) = row == kPageTokens ? GateLogit(log_f) : 20;
  }
  return inputs;
}

// The normed output moves by at most four times the shift, times sqrt(d); here by a third of that.
TEST(LostMassOfSmallOutputsTest, ShiftsShowWhatTheNormMakesOfTheLoss) {
  CpuOps ops({.dtype = DType::kF64, .threads = 1});
  for (const double value : {0.1, 1.0, 30.0, 1000.0}) {
    SCOPED_TRACE(value);
    double log_f = -11;
    RunOptions options{.acp = AcpMode::kCertified, .chunks = {1}};
    HeadOutputs pruned;
    do {
      pruned = RunHeads(ops, SmallOutputs(value, log_f -= 0.1), options);
    } while (pruned.pages_evicted == 0);
    const HeadOutputs full = RunHeads(ops, SmallOutputs(value, log_f), {.chunks = {1}});
    double moved = 0;
    for (size_t at = 192 * 16; at < full.out.size(); at += 16) {
      double square = 0;
      for (size_t m = 0; m < 16; ++m) square += std::pow(full.out[at + m] - pruned.out[at + m], 2);
      moved = std::max(moved, std::sqrt(square));
    }
    const double shift = std::exp(pruned.lost_mass.max_log_shift);
    EXPECT_LE(moved, 4 * 4 * shift);
    EXPECT_GE(moved, std::min(4 * shift / 3, 1.0));
    EXPECT_EQ(shift > 0.1, value >= 30) << shift << ", moved by " << moved;
    EXPECT_LT(pruned.lost_mass.max_log, -10);
  }
}

TEST(LostMassInChunksTest, NothingIsLostWithoutPruning) {
  CpuOps ops({.dtype = DType::kF64, .threads = 1});
  const LostMass lost = RunHeads(ops, Inputs(Grouped(true), 400), {.chunks = {64}}).lost_mass;
  EXPECT_EQ(lost.sum, 0);
  EXPECT_EQ(lost.max_log, kNoMass);
}

TEST(LostMassInChunksTest, SumsKeepWhatIsTooSmallForThem) {
  LostMass lost;
  lost.Add(-1472.0, kNoMass);
  EXPECT_EQ(lost.max_log, -1472);
  EXPECT_EQ(lost.sum, std::exp(kLeastLogMass));
  EXPECT_EQ(lost.shift_sum, 0);
  lost.Add(-1.0, 2.0);
  EXPECT_EQ(lost.max_log, -1);
  EXPECT_EQ(lost.max_log_shift, 2);
  EXPECT_NEAR(lost.sum, std::exp(-1), 1e-15);
}

}  // namespace
}  // namespace fox::testing
