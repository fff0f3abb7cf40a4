// The CPU backend's Append and Attention against naive float64 attention, and against themselves:
// every row has the same bits in any chunks. Run once per instruction set.
#include <gtest/gtest.h>

#include <cmath>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/mass_audit.h"
#include "tests/kernels/head_sequence.h"

namespace fox::testing {
namespace {

// float64: rounding of sums of up to 64-dimensional dots. float32: unit roundoff 6e-8 over logits
// of size up to ~10 makes 1e-6 in each weight. bf16 pages: keys and values are off by 2^-9 each, in
// 8 bits by 2^-5.
double ToleranceOf(DType dtype) {
  if (dtype == DType::kF64) return 1e-13;
  return dtype == DType::kF32 ? 5e-6 : dtype == DType::kBF16 ? 3e-2 : 0.2;
}

double LargestDecay(const HeadInputs& inputs) {
  double largest = 0;
  for (int h = 0; h < inputs.shape.q_heads; ++h) {
    double total = 0;
    for (int64_t row = 0; row < inputs.length; ++row) {
      total += std::log1p(std::exp(-inputs.at(row, inputs.gate_column() + h)));
    }
    largest = std::max(largest, total);
  }
  return largest;
}

HeadOutputs RunSolo(const HeadInputs& inputs, const RunOptions& options) {
  CpuOps ops({});
  return RunHeads(ops, inputs, options);
}

void ExpectMatchesNaive(const HeadInputs& inputs) {
  const HeadOutputs want = NaiveAttention(inputs);
  for (DType dtype : {DType::kF64, DType::kF32, DType::kBF16, DType::kE4M3}) {
    SCOPED_TRACE(::testing::Message() << NameOf(dtype));
    const HeadOutputs got = RunSolo(inputs, {.dtype = dtype});
    EXPECT_LT(RelativeError(got.out, want.out), ToleranceOf(dtype)) << NameOf(dtype);
    // Differences of cumulative gates carry the rounding of the sums.
    EXPECT_LT(LargestError(got.lse, want.lse),
              4 * ToleranceOf(dtype) + 1e-15 * LargestDecay(inputs))
        << NameOf(dtype);
    EXPECT_EQ(got.blocks_pruned, 0);
  }
}

TEST(CpuAttentionTest, MatchesNaiveAttention) {
  for (const HeadInputs& inputs : AttentionCases({2, 16, 24, 32, 48, 64, 80, 128, 256})) {
    SCOPED_TRACE(::testing::Message() << inputs.length << " x " << inputs.shape.head_dim);
    ExpectMatchesNaive(inputs);
  }
}

TEST(CpuAttentionTest, ChunksDoNotChangeABit) {
  HeadShape shape{4, 2, 32, true, true, true, true};
  shape.sink = true;
  const HeadInputs inputs = RandomInputs(shape, 517, 23, {0, 2, 4, 9});
  for (DType dtype : {DType::kF64, DType::kF32, DType::kBF16, DType::kE4M3}) {
    for (AcpMode acp : {AcpMode::kOff, AcpMode::kPaper, AcpMode::kCertified}) {
      SCOPED_TRACE(::testing::Message() << NameOf(dtype) << " mode " << static_cast<int>(acp));
      RunOptions options{.dtype = dtype, .acp = acp};
      const HeadOutputs whole = RunSolo(inputs, options);
      for (const std::vector<int64_t>& chunks :
           {std::vector<int64_t>{1}, {64}, {37}, {200, 1}, {63, 2, 128, 5}}) {
        options.chunks = chunks;
        const HeadOutputs got = RunSolo(inputs, options);
        EXPECT_EQ(got.bits(), whole.bits());
        EXPECT_EQ(got.pages_evicted, whole.pages_evicted);
      }
    }
  }
}

// Pages in 8 bits give the same bits of outputs, sums and decisions as other pages that hold the
// rounded keys and values exactly.
TEST(CpuAttentionTest, PagesOf8BitsEqualOthersOfRoundedKeysAndValues) {
  for (const int head_dim : {24, 32, 128}) {
    HeadShape shape{4, 2, head_dim, false, false, false};
    shape.sink = true;
    HeadInputs inputs = RandomInputs(shape, 600, 37, {0, 2, 4, 9}), rounded = inputs;
    RoundToE4M3(rounded);
    inputs.bound_diagonal = rounded.bound_diagonal = std::vector<float>(
        static_cast<size_t>(shape.hidden()), 1 / std::sqrt(static_cast<float>(head_dim)));
    for (AcpMode acp : {AcpMode::kOff, AcpMode::kPaper, AcpMode::kCertified}) {
      SCOPED_TRACE(::testing::Message() << head_dim << " mode " << static_cast<int>(acp));
      RunOptions options{.dtype = DType::kE4M3, .acp = acp, .chunks = {200, 1, 63}};
      const HeadOutputs got = RunSolo(inputs, options);
      EXPECT_EQ(got.pages_evicted > 0, acp == AcpMode::kCertified);
      for (DType dtype : {DType::kF32, DType::kBF16}) {
        options.dtype = dtype;
        const HeadOutputs want = RunSolo(rounded, options);
        EXPECT_EQ(got.bits(), want.bits()) << NameOf(dtype);
      }
    }
  }
}

// Results that depend on a NaN or infinity are not finite.
TEST(CpuAttentionTest, PagesOf8BitsHideNoNanOrInfinity) {
  for (const double bad : {HUGE_VAL, std::nan("")}) {
    SCOPED_TRACE(::testing::Message() << bad);
    HeadInputs inputs = RandomInputs({1, 1, 64}, 3, 41, {3});
    inputs.at(1, 128) = bad;
    const HeadOutputs got = RunSolo(inputs, {.dtype = DType::kE4M3, .chunks = {1}});
    for (size_t i = 0; i < got.out.size(); ++i)
      EXPECT_EQ(std::isfinite(got.out[i]), i < 64) << "element " << i;
  }
}

TEST(CpuAttentionTest, RaggedBatchWithEmptyRowsEqualsSolo) {
  // Three slots in one batch, one of them with no row: each as if alone.
  CpuOps ops({});
  const HeadShape shape{2, 1, 32};
  const RunOptions options{.dtype = DType::kF32};
  PagedKvStorage storage(ShapeFor(shape, 192, options.dtype, 3), ops);
  HeadInputs first = RandomInputs(shape, 65, 29, {2, 5}),
             last = RandomInputs(shape, 140, 31, {2, 5});
  last.q_norm = first.q_norm;
  last.k_norm = first.k_norm;
  std::vector<double> rows = first.projection;
  rows.insert(rows.end(), last.projection.begin(), last.projection.end());
  HeadRun run(ops, storage.view(), first, options);
  const HeadRun::Result both = run.Step({{2, 0, 65}, {0, 0, 0}, {1, 0, 140}}, rows);
  std::vector<double> solo = RunSolo(first, options).out;
  const std::vector<double> more = RunSolo(last, options).out;
  solo.insert(solo.end(), more.begin(), more.end());
  EXPECT_EQ(both.out, solo);
}

TEST(CpuAttentionTest, MillionTokensOfGatesStayExact) {
  // |log f| from 1e-7 to 50: one row in a thousand of a million tokens, float32 pages against
  // float64.
  HeadShape shape{1, 1, 2, false, false, true};
  const int64_t length = 1000000;
  HeadInputs inputs = RandomInputs(shape, length, 31, {0});
  for (int64_t row = 0; row < length; ++row) {
    // log f = -exp(u) for u uniform in log scale, repeated in blocks of calm and of forgetting.
    const double u = static_cast<double>((row * 2654435761u) % 1000) / 1000;
    const double calm = (row / 5000) % 4 == 0 ? 1.0 : 0.35;
    const double log_f = -std::exp(std::log(1e-7) + u * calm * std::log(50 / 1e-7));
    inputs.at(row, inputs.gate_column()) = GateLogit(log_f);
  }
  CpuOps ops({});
  std::vector<HeadOutputs> results;
  for (DType dtype : {DType::kF64, DType::kF32}) {
    results.push_back(
        RunHeads(ops, inputs, {.dtype = dtype, .chunks = {64}, .attend_every = 1000}));
  }
  // Offsets within a page reach 64 * 50 in float32 (2e-4 absolute); their differences matter only
  // where the weight is not negligible.
  EXPECT_LT(LargestError(results[1].lse, results[0].lse), 1e-3);
}

// The row certificate compares with logits as they were computed: 64 zero keys, then a row whose
// own logit is about `sign` * 8 gain^2, and the least tolerance under which it skips them. A row
// whose own key opposes it forgets as much. A sink weighs as much as the own key.
struct LargeLogit {
  double gain, sign;
  float sink = 0;  // 0: none
};

class LargeLogitsTest : public ::testing::TestWithParam<LargeLogit> {
 protected:
  static constexpr int kDim = 64;

  HeadInputs Inputs(uint64_t seed, DType dtype) const {
    const auto [gain, sign, sink] = GetParam();
    HeadShape shape{1, 1, kDim};
    shape.sink = sink != 0;
    HeadInputs inputs = RandomInputs(shape, kPageTokens + 1, seed, {20});
    if (shape.sink) inputs.sink = {sink};
    inputs.q_norm.assign(kDim, gain);
    inputs.k_norm.assign(kDim, gain);
    SetBounds(inputs, dtype);
    for (int64_t row = 0; row < kPageTokens; ++row) {
      for (int m = 0; m < 2 * kDim; ++m) inputs.at(row, m) = 0;
    }
    for (int m = 0; m < kDim; ++m) {
      double& key = inputs.at(kPageTokens, kDim + m);
      key = sign * (inputs.at(kPageTokens, m) + 0.2 * key);
    }
    if (sign < 0) inputs.at(kPageTokens, inputs.gate_column()) = -8 * gain * gain - 12;
    return inputs;
  }
  // True if the row skips the page; `excess` becomes log(lost mass) - log eps.
  static bool Skips(const HeadInputs& inputs, DType dtype, double log_tolerance, double& excess) {
    const auto audit = std::make_shared<MassAudit>(MassAudit::OnBreach::kRecord);
    CpuOps ops({.threads = 1, .audit = audit});
    const RunOptions options{
        .dtype = dtype, .acp = AcpMode::kCertified, .log_tolerance = log_tolerance};
    const bool skips = RunHeads(ops, inputs, options).blocks_pruned > 0;
    if (skips) excess = audit->max_excess();
    return skips;
  }
};

TEST_P(LargeLogitsTest, RoundedLogitsLicenseNothing) {
  for (uint64_t seed = 1; seed <= 24; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    const DType dtype = seed % 2 == 0 ? DType::kE4M3 : DType::kF32;
    const HeadInputs inputs = Inputs(seed / 2, dtype);
    double low = -8 * GetParam().gain * GetParam().gain - 60, high = -1e-3, excess = kNoMass;
    ASSERT_TRUE(Skips(inputs, dtype, high, excess));
    for (int step = 0; step < 40; ++step) {
      const double middle = (low + high) / 2;
      (Skips(inputs, dtype, middle, excess) ? high : low) = middle;
      EXPECT_LE(excess, 0) << seed << ' ' << middle;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(CpuAttention, LargeLogitsTest,
                         ::testing::ValuesIn(std::vector<LargeLogit>{{1, -1},
                                                                     {60, -1},
                                                                     {300, -1},
                                                                     {1000, -1},
                                                                     {1, 1},
                                                                     {300, 1},
                                                                     {1000, 1},
                                                                     {1, 1, 8},
                                                                     {60, -1, -28800},
                                                                     {300, 1, 720000}}));

}  // namespace
}  // namespace fox::testing
