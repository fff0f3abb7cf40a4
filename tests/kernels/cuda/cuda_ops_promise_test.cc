// The promise of ACP on the device: the keys that a row does not see, evicted or skipped, weigh at
// most eps in its attention, measured in float64 from the operands that the device stored. First
// random heads, then inputs made to break the promise by rounding (kernels/docs/acp.md section 3).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "tests/kernels/cuda/device_heads.h"

namespace fox::cuda::testing {
namespace {

HeadShape OneHead(int head_dim, bool rotates = false, bool shifts = false) {
  return {1, 1, head_dim, shifts, shifts, true, rotates};
}

HeadShape FoxifiedHead(int head_dim) {
  HeadShape shape = OneHead(head_dim, true);
  shape.qk_norm = false;
  shape.sink = shape.norm_caps = true;
  return shape;
}

// With norm weights that are all `gain`.
HeadInputs WithGain(HeadInputs inputs, double gain, DType pages) {
  inputs.q_norm.assign(inputs.q_norm.size(), gain);
  inputs.k_norm = inputs.q_norm;
  SetBounds(inputs, pages);
  return inputs;
}

// All sequences have the norms, caps and sinks of the first.
std::vector<HeadRows> RandomSequences(const HeadShape& shape, int64_t length,
                                      const std::vector<double>& gate_means, DType pages,
                                      std::mt19937_64& rng) {
  std::vector<HeadRows> sequences;
  for (const double mean : gate_means) {
    sequences.push_back({RandomInputs(shape, length, rng(), {mean})});
  }
  SetBounds(sequences[0].inputs, pages);
  return sequences;
}

// Old keys along a direction, later ones against it and queries along it: as much lost mass as a
// model can make after the decision.
void TurnAround(HeadInputs& inputs, std::mt19937_64& rng) {
  std::normal_distribution<double> normal;
  const int d = inputs.shape.head_dim;
  const auto turn = static_cast<int64_t>(64 * (1 + rng() % 8));
  for (int m = 0; m < d; ++m) {
    const double u = normal(rng);
    for (int64_t row = 0; row < inputs.length; ++row) {
      inputs.at(row, m) = u;
      inputs.at(row, d + m) = row < turn ? u : -u;
    }
  }
}

// The number of rows that lost something.
int RowsThatLost(const DeviceHeads& heads) {
  int rows = 0;
  for (int s = 0; s < heads.num_seqs(); ++s) {
    for (const int first : heads.stored(s).first_page) rows += first > 0 ? 1 : 0;
  }
  return rows;
}

void ExpectPromise(const std::vector<HeadRows>& sequences, int64_t step, bool portable = false) {
  DeviceHeads heads(sequences, portable);
  heads.Run(step);
  EXPECT_LE(heads.WorstExcess(), 0) << "steps of " << step;
  EXPECT_GT(RowsThatLost(heads), 0);
  for (int s = 0; s < heads.num_seqs(); ++s) {
    EXPECT_LE(heads.max_log_evicted_mass(s), sequences[static_cast<size_t>(s)].log_tolerance) << s;
    heads.ExpectLostMass(s);
  }
}

// With pages of this type.
class PromiseTest : public ::testing::TestWithParam<DType> {};

TEST_P(PromiseTest, RandomHeads) {
  std::mt19937_64 rng(1);
  for (const int head_dim : {32, 64, 128}) {
    for (const HeadShape& shape :
         {OneHead(head_dim), OneHead(head_dim, true), FoxifiedHead(head_dim)}) {
      std::vector<HeadRows> sequences =
          RandomSequences(shape, 900, {-1, 0, 1, 2, 3, 4, 5}, GetParam(), rng);
      sequences[3].log_tolerance = -4;
      ExpectPromise(sequences, 1);
      for (const bool portable : {false, true}) {
        for (const int64_t step : {64, 300}) ExpectPromise(sequences, step, portable);
      }
    }
  }
}

TEST_P(PromiseTest, QueriesAgainstTheDecision) {
  std::mt19937_64 rng(2);
  std::vector<double> means;
  for (int trial = 0; trial < 40; ++trial) means.push_back(0.5 + trial % 4);
  for (const HeadShape& shape : {OneHead(32), FoxifiedHead(32)}) {
    std::vector<HeadRows> sequences = RandomSequences(shape, 768, means, GetParam(), rng);
    for (HeadRows& rows : sequences) TurnAround(rows.inputs, rng);
    ExpectPromise(sequences, 64);
  }
}

// E and H of full pages against their definitions in float64, from the stored keys and gates and
// without any inflation: bounds they must be, whatever cancels.
void ExpectBounds(const DeviceHeads& heads, int s) {
  const StoredRows& stored = heads.stored(s);
  const std::vector<double>& q_norm = heads.constants().q_norm;
  const size_t d = q_norm.size();
  double log_mass = kNoMass, least = std::numeric_limits<double>::infinity(), before = 0;
  double decay_sum = 0;
  std::vector<double> key_sum(d, 0.0);
  for (size_t p = 0; p + 1 < stored.page_cum_log_f.size(); ++p) {
    const double c_end = stored.page_cum_log_f[p + 1];
    const double decay = std::exp(c_end - before);
    before = c_end;
    decay_sum *= decay;
    for (double& x : key_sum) x *= decay;
    for (size_t j = p * kPageTokens; j < (p + 1) * kPageTokens; ++j) {
      const double c = stored.CumulativeGate(static_cast<int64_t>(j)), weight = std::exp(c_end - c);
      double square = 0;
      for (size_t m = 0; m < d; ++m) {
        const double x = q_norm[m] * stored.k[j * d + m];
        square += x * x;
        key_sum[m] += weight * stored.k[j * d + m];
      }
      decay_sum += weight;
      log_mass = LogAddExp(log_mass, std::sqrt(square) - c);
    }
    double square = 0;
    for (size_t m = 0; m < d; ++m) {
      const double x = q_norm[m] * key_sum[m] / decay_sum;
      square += x * x;
    }
    least = std::min(least, c_end + std::sqrt(square) - std::log(decay_sum));
    EXPECT_GE(stored.log_mass_bound[p], log_mass) << "E of page " << p << ", sequence " << s;
    EXPECT_GE(stored.log_denominator_bound[p], least) << "H of page " << p << ", sequence " << s;
  }
}

// Keys of either sign and great length, so that nothing is left of their sum but rounding.
HeadInputs CancellingRows(int head_dim, int64_t length, uint64_t seed) {
  HeadInputs inputs = RandomInputs(OneHead(head_dim), length, seed, {6});
  for (int64_t row = 1; row < length; row += 2) {
    for (int m = 0; m < head_dim; ++m) {
      inputs.at(row, head_dim + m) = -inputs.at(row - 1, head_dim + m);
    }
  }
  return inputs;
}

TEST_P(PromiseTest, SummariesAreBounds) {
  std::mt19937_64 rng(3);
  for (const int head_dim : {16, 64, 128}) {
    for (const double gain : {1.0, 30.0, 1000.0}) {
      std::vector<HeadRows> sequences =
          RandomSequences(OneHead(head_dim), 700, {-40, 0, 3, 9}, GetParam(), rng);
      for (int i = 0; i < 4; ++i) sequences.push_back({CancellingRows(head_dim, 700, rng())});
      sequences[0].inputs = WithGain(sequences[0].inputs, gain, GetParam());
      for (const int64_t step : {64, 1, 700}) {
        DeviceHeads heads(sequences);
        heads.Run(step, false);
        for (int s = 0; s < heads.num_seqs(); ++s) ExpectBounds(heads, s);
      }
    }
  }
}

// Page offsets are float32. A head whose keys are zero, so that its bounds are exact, forgets so
// much in its first page that what its last tokens forget is rounded away: by the exact gates the
// first page weighs more than by the stored ones. (A looser clamp than its own stands for another
// head of the layer with large norm weights.) Tolerances in small steps, so that some decision is a
// close one.
HeadInputs LostOffsets(double step, double lost, double log_f, DType pages) {
  constexpr int kForgetting = 32, kHeadDim = 16;
  HeadInputs inputs = WithGain(RandomInputs(OneHead(kHeadDim), 64 * 24, 1, {0}), 1, pages);
  for (int64_t row = 0; row < inputs.length; ++row) {
    for (int m = 0; m < kHeadDim; ++m) {
      inputs.at(row, m) = 1;
      inputs.at(row, kHeadDim + m) = 0;
    }
    const double gate = row < kForgetting ? -step : row == kForgetting ? -lost : -log_f;
    inputs.at(row, inputs.gate_column()) = GateLogit(gate);
  }
  return inputs;
}

std::vector<double> ExactGates(HeadInputs inputs, double min_log_gate) {
  RoundToBFloat16(inputs);
  std::vector<double> c;
  double sum = 0;
  for (int64_t row = 0; row < inputs.length; ++row) {
    c.push_back(sum += LogForgetGate(inputs.at(row, inputs.gate_column()), min_log_gate));
  }
  return c;
}

TEST_P(PromiseTest, OffsetsOfHardForgettingPages) {
  struct Case {
    double step, share_of_ulp, log_f;
  };
  for (const Case& c : {Case{0x1p18, 0.15, 0.01}, Case{0x1p18, 0.85, 0.01}, Case{0x1p20, 0.3, 0.02},
                        Case{0x1p20, 0.45, 0.01}, Case{0x1p20, 0.7, 0.02}}) {
    const double ulp = c.step * 32 * 0x1p-23;
    const HeadInputs inputs = LostOffsets(c.step, c.share_of_ulp * ulp, c.log_f, GetParam());
    std::vector<HeadRows> sequences;
    for (int i = 0; i < 32; ++i) sequences.push_back({inputs, -10 - 2.0 * i * c.log_f});
    const std::vector<double> gates = ExactGates(inputs, -2 * c.step);
    for (const int64_t rows : {64, 1}) {
      SCOPED_TRACE(::testing::Message()
                   << rows << " rows a step, step " << c.step << ", share " << c.share_of_ulp);
      if (rows == 1 && c.share_of_ulp != 0.15) continue;  // as good as the others, but slow
      DeviceHeads heads(sequences, false, -2 * c.step);
      heads.Run(rows, false);
      for (int s = 0; s < 32; ++s) {
        const double log_tolerance = sequences[static_cast<size_t>(s)].log_tolerance;
        double worst = kNoMass;
        for (int64_t row = 0; row < inputs.length; ++row) {
          worst = std::max({worst, heads.LogLostMass(s, row, &gates), heads.LogLostMass(s, row)});
        }
        EXPECT_LE(worst, log_tolerance) << c.step << ' ' << c.share_of_ulp << ' ' << s;
        if (c.step < 0x1p20) {
          EXPECT_GT(heads.first_live(s), 0) << "sequence " << s;
        }
      }
    }
  }
}

// Under RoPE a row's logit with its own key comes from rotated operands, whose rounding is relative
// to their norms, while the largest product gq gk of a dimension may be small. A row whose own key
// opposes its query in one rotation pair sees `zeros` zero keys and forgets just enough for B. (And
// the same without RoPE, where B needs no such term.)
HeadInputs OpposedKey(bool rotates, double gain, int pair, int64_t zeros, DType pages) {
  constexpr int kDim = 64, kHalf = 32;
  HeadInputs inputs = RandomInputs(OneHead(kDim, rotates), zeros + 2, 1, {0});
  for (size_t m = 0; m < kHalf; ++m) {
    inputs.q_norm[m] = inputs.k_norm[m + kHalf] = gain;
    inputs.q_norm[m + kHalf] = inputs.k_norm[m] = 1 / gain;
    if (rotates) inputs.rope_frequency[m] = std::pow(5e5, -2.0 * static_cast<double>(m) / kDim);
  }
  SetBounds(inputs, pages);
  for (int64_t row = 0; row < inputs.length; ++row) {
    for (int m = 0; m < 2 * kDim; ++m) inputs.at(row, m) = 0;
    inputs.at(row, inputs.gate_column()) = 20;
  }
  inputs.at(zeros, pair) = inputs.at(zeros, pair + kHalf) = 1;
  inputs.at(zeros, kDim + pair) = inputs.at(zeros, kDim + pair + kHalf) = -1;
  const double needed = 10 + kAcpSlack + std::log(128) + inputs.self_logit_bound[0] + 1e-2;
  inputs.at(zeros, inputs.gate_column()) = -needed * (1 + 0x1p-8);  // bf16 rounds it
  return inputs;
}

void ExpectOwnLogitBound(bool rotates, double gain, DType pages) {
  std::vector<HeadRows> sequences;
  std::vector<int64_t> zeros;
  for (int pair = 0; pair < 32; ++pair) {
    for (const int64_t count : {128, 131, 143, 157, 170, 185}) {
      sequences.push_back({OpposedKey(rotates, gain, pair, count, pages)});
      zeros.push_back(count);
    }
  }
  for (const bool portable : {false, true}) {
    DeviceHeads heads(sequences, portable);
    heads.Step(zeros);
    heads.Step(std::vector<int64_t>(sequences.size(), 2));
    EXPECT_LE(heads.WorstExcess(), 0) << (rotates ? "RoPE, " : "") << "gain " << gain;
    EXPECT_GT(RowsThatLost(heads), 0) << gain;
  }
}

TEST_P(PromiseTest, OwnKeyAgainstItsQuery) {
  for (const bool rotates : {true, false}) {
    for (const double gain : {1.0, 6.0, 16.0, 64.0, 1024.0})
      ExpectOwnLogitBound(rotates, gain, GetParam());
  }
}

// The row certificate trusts computed logits. A row's own logit is near -8 gain^2, and it forgets
// 512 keys, all but the last two zero, by a little more than that: in three gates, because a single
// bf16 gate would be too coarse; the keys between them oppose the query as its own key does. The
// mass that the row loses by leaving out the first 128 keys is known from a run that leaves out
// nothing; tolerances then lie around it.
constexpr int64_t kHistory = 512;  // PrefillSm90 asks after four tiles

HeadInputs OpposedLongKey(double gain, DType pages, std::mt19937_64& rng) {
  constexpr int kHeadDim = 64;
  const auto rounded = [](double x) {
    return static_cast<double>(static_cast<float>(BFloat16(static_cast<float>(x))));
  };
  std::normal_distribution<double> normal;
  HeadInputs inputs = WithGain(RandomInputs(OneHead(kHeadDim), kHistory + 2, 1, {0}), gain, pages);
  for (int64_t row = 0; row < inputs.length; ++row) {
    for (int m = 0; m < 2 * kHeadDim; ++m) inputs.at(row, m) = 0;
    inputs.at(row, inputs.gate_column()) = 20;
  }
  double q_square = 0, k_square = 0, product = 0;
  for (int m = 0; m < kHeadDim; ++m) {
    const double q = rounded(normal(rng)), k = rounded(-q - 0.2 * normal(rng));
    inputs.at(kHistory, m) = q;
    for (int64_t row = kHistory - 2; row <= kHistory; ++row) inputs.at(row, kHeadDim + m) = k;
    q_square += q * q;
    k_square += k * k;
    product += q * k;
  }
  double rest = 8.0 * gain * gain * product / std::sqrt(q_square * k_square) - 15;
  for (int64_t row = kHistory - 2; row <= kHistory; ++row) {
    const double part = row == kHistory ? rest : rest * (1 - 0x1p-7);
    const double logit = rounded(GateLogit(std::min(part, -1e-3)));
    inputs.at(row, inputs.gate_column()) = logit;
    rest -= LogForgetGate(logit, kNoMass);
  }
  return inputs;
}

TEST_P(PromiseTest, RowCertificateOfLargeLogits) {
  for (const double gain : {4.0, 60.0, 300.0}) {
    std::mt19937_64 rng(4);
    std::vector<HeadRows> sequences;
    for (int i = 0; i < 256; ++i) sequences.push_back({OpposedLongKey(gain, GetParam(), rng)});
    const std::vector<int64_t> history(sequences.size(), kHistory), rest(sequences.size(), 2);
    for (const bool portable : {false, true}) {
      DeviceHeads whole(sequences, portable);
      whole.Step(history, false);
      whole.Step(rest, false);
      // The budget of acp.h for the rounding of these logits; beyond it some rows stop.
      const double most = whole.constants().max_logit_bound[0];
      const double budget =
          kAcpSlack + (portable ? 0 : kWeightSumRounding) + RowRounding(64, most, 0, most);
      for (int s = 0; s < whole.num_seqs(); ++s) {
        const double lost = whole.LogMassBefore(s, kHistory, 128);
        sequences[static_cast<size_t>(s)].log_tolerance =
            lost + 2 * budget * std::pow((s - 128) / 128.0, 3);
      }
      DeviceHeads heads(sequences, portable);
      heads.Step(history, false);
      heads.Step(rest);
      EXPECT_LE(heads.WorstExcess(), 0) << gain << (portable ? " portable" : "");
      EXPECT_GT(RowsThatLost(heads), 0) << gain;
    }
  }
}

// The row certificate trusts a row's sum of weights. A quarter of a million keys that weigh 1.77
// units in the last place of the row's own would, added one by one in float32, count as 2 each: in
// the lane that holds the own key the sum then rises by 0.0018 of itself.
TEST_P(PromiseTest, SumsOfManyKeys) {
  constexpr int kHeadDim = 32;
  constexpr int64_t kLength = int64_t{1} << 18;
  HeadInputs inputs = WithGain(RandomInputs(OneHead(kHeadDim), 0, 1, {0}), 1.649F, GetParam());
  inputs.length = kLength;
  inputs.projection.assign(static_cast<size_t>(kLength * inputs.columns()), 0);
  for (int64_t row = 0; row < kLength; ++row) inputs.at(row, inputs.gate_column()) = 20;
  for (int m = 0; m < 3 * kHeadDim; ++m) inputs.at(kLength - 1, m) = 1;
  for (const bool portable : {false, true}) {
    SCOPED_TRACE(::testing::Message() << (portable ? "portable" : "native"));
    DeviceHeads heads({{inputs, kNoMass}}, portable);
    heads.Step({kLength - 64}, false);
    heads.Step({64});
    const double got = heads.stored(0).lse.back(), want = heads.ExactLse(0, kLength - 1);
    EXPECT_GT(want, inputs.max_logit_bound[0] * 0.85);
    // Two roundings a page and the roundings inside a tile, or of tensor cores, and a float32
    // result.
    const double sums = 0x1p-24 * (2.0 * PagesFor(kLength) + kTileRows + want) +
                        (portable ? 0 : kWeightSumRounding);
    EXPECT_NEAR(got, want, sums + RowRounding(kHeadDim, inputs.max_logit_bound[0], 0, 0))
        << (portable ? "portable" : "native");
  }
}

INSTANTIATE_TEST_SUITE_P(Pages, PromiseTest, ::testing::Values(DType::kBF16, DType::kE4M3),
                         [](const auto& pages) { return NameOf(pages.param); });

}  // namespace
}  // namespace fox::cuda::testing
