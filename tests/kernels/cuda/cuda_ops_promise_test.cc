// The promise of ACP on the device: what a row does not see, evicted or skipped, weighs at most eps
// in its attention, measured in float64 from the operands that the device stored. First random
// heads, then inputs made to break the promise by rounding (kernels/docs/acp.md section 3).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "tests/kernels/cuda/device_heads.h"

namespace fox::cuda::testing {
namespace {

std::vector<double> Frequencies(int head_dim, double base) {
  std::vector<double> frequency;
  for (int m = 0; m < head_dim / 2; ++m) {
    frequency.push_back(std::pow(base, -2.0 * m / static_cast<double>(head_dim)));
  }
  return frequency;
}

HeadConstants RandomHead(int head_dim, bool rotates, std::mt19937_64& rng) {
  std::normal_distribution<float> normal(1, 0.15F);
  HeadConstants head = HeadConstants::WithGain(head_dim, 1);
  for (float& g : head.q_norm) g = normal(rng);
  for (float& g : head.k_norm) g = normal(rng);
  if (rotates) head.rope_frequency = Frequencies(head_dim, 10000);
  return head;
}

// Old keys along a direction, later ones against it and queries along it: as much lost mass as a
// model can make after the decision.
void TurnAround(HeadRows& rows, int head_dim, std::mt19937_64& rng) {
  std::normal_distribution<float> normal;
  std::vector<float> u(static_cast<size_t>(head_dim));
  for (float& x : u) x = normal(rng);
  const size_t turn = 64 * (1 + rng() % 8);
  for (size_t i = 0; i < rows.q.size(); ++i) {
    const size_t row = i / u.size();
    rows.q[i] = u[i % u.size()];
    rows.k[i] = row < turn ? u[i % u.size()] : -u[i % u.size()];
  }
}

// The number of rows that lost something.
int RowsThatLost(const DeviceHeads& heads, int sequences) {
  int rows = 0;
  for (int s = 0; s < sequences; ++s) {
    for (const int first : heads.stored(s).first_page) rows += first > 0 ? 1 : 0;
  }
  return rows;
}

void ExpectPromise(const HeadConstants& head, const std::vector<HeadRows>& sequences,
                   int64_t step) {
  DeviceHeads heads(head, sequences);
  heads.Run(step);
  EXPECT_LE(heads.WorstExcess(), 0) << "steps of " << step;
  EXPECT_GT(RowsThatLost(heads, static_cast<int>(sequences.size())), 0);
  for (int s = 0; s < static_cast<int>(sequences.size()); ++s) {
    EXPECT_LE(heads.max_log_evicted_mass(s), sequences[static_cast<size_t>(s)].log_tolerance);
  }
}

TEST(PromiseTest, RandomHeads) {
  std::mt19937_64 rng(1);
  for (const int head_dim : {32, 64, 128}) {
    for (const bool rotates : {false, true}) {
      HeadConstants head = RandomHead(head_dim, rotates, rng);
      std::vector<HeadRows> sequences;
      for (const double mean : {-1.0, 0.0, 1.0, 2.0, 3.0, 4.0, 5.0}) {
        sequences.push_back(RandomRows(head_dim, 900, mean, rng));
      }
      sequences[3].log_tolerance = -4;
      ExpectPromise(head, sequences, 1);
      for (const bool portable : {false, true}) {
        head.portable = portable;
        for (const int64_t step : {64, 300}) ExpectPromise(head, sequences, step);
      }
    }
  }
}

TEST(PromiseTest, QueriesAgainstTheDecision) {
  std::mt19937_64 rng(2);
  HeadConstants head = RandomHead(32, false, rng);
  std::vector<HeadRows> sequences;
  for (int trial = 0; trial < 40; ++trial) {
    sequences.push_back(RandomRows(32, 768, 0.5 + trial % 4, rng));
    TurnAround(sequences.back(), 32, rng);
  }
  ExpectPromise(head, sequences, 64);
}

// E and H of full pages against their definitions in float64, from the stored keys and gates and
// without any inflation: bounds they must be, whatever cancels.
void ExpectBounds(const HeadConstants& head, const DeviceHeads& heads, int s) {
  const StoredRows& stored = heads.stored(s);
  const auto d = static_cast<size_t>(head.head_dim);
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
        const double x = static_cast<double>(head.q_norm[m]) * stored.k[j * d + m];
        square += x * x;
        key_sum[m] += weight * stored.k[j * d + m];
      }
      decay_sum += weight;
      log_mass = LogAddExp(log_mass, std::sqrt(square) - c);
    }
    double square = 0;
    for (size_t m = 0; m < d; ++m) {
      const double x = static_cast<double>(head.q_norm[m]) * key_sum[m] / decay_sum;
      square += x * x;
    }
    least = std::min(least, c_end + std::sqrt(square) - std::log(decay_sum));
    EXPECT_GE(stored.log_mass_bound[p], log_mass) << "E of page " << p << ", sequence " << s;
    EXPECT_GE(stored.log_denominator_bound[p], least) << "H of page " << p << ", sequence " << s;
  }
}

// Keys of either sign and great length, so that nothing is left of their sum but rounding.
HeadRows CancellingRows(int head_dim, int64_t length, std::mt19937_64& rng) {
  HeadRows rows = RandomRows(head_dim, length, 6, rng);
  const auto d = static_cast<size_t>(head_dim);
  for (size_t i = d; i < rows.k.size(); ++i) {
    if (i / d % 2 == 1) rows.k[i] = -rows.k[i - d];
  }
  return rows;
}

TEST(PromiseTest, SummariesAreBounds) {
  std::mt19937_64 rng(3);
  for (const int head_dim : {16, 64, 128}) {
    for (const float gain : {1.0F, 30.0F, 1000.0F}) {
      const HeadConstants head = HeadConstants::WithGain(head_dim, gain);
      std::vector<HeadRows> sequences;
      for (const double mean : {-40.0, 0.0, 3.0, 9.0}) {
        sequences.push_back(RandomRows(head_dim, 700, mean, rng));
        sequences.push_back(CancellingRows(head_dim, 700, rng));
      }
      for (const int64_t step : {64, 1, 700}) {
        DeviceHeads heads(head, sequences);
        heads.Run(step, false);
        for (int s = 0; s < static_cast<int>(sequences.size()); ++s) ExpectBounds(head, heads, s);
      }
    }
  }
}

// Page offsets are float32. A head whose keys are zero, so that its bounds are exact, forgets so
// much in its first page that what its last tokens forget is rounded away: by the exact gates the
// first page weighs more than by the stored ones. (A looser clamp than its own stands for another
// head of the layer with large norm weights.) Tolerances in small steps, so that some decision is a
// close one.
HeadRows LostOffsets(double step, double lost, double log_f, double log_tolerance) {
  HeadRows rows;
  constexpr int kForgetting = 32, kHeadDim = 16;
  for (int row = 0; row < 64 * 24; ++row) {
    const double gate = row < kForgetting ? -step : row == kForgetting ? -lost : -log_f;
    rows.gate_logit.push_back(static_cast<float>(GateLogit(gate)));
  }
  rows.q.assign(rows.gate_logit.size() * kHeadDim, 1.0F);
  rows.k.assign(rows.q.size(), 0.0F);
  rows.log_tolerance = log_tolerance;
  return rows;
}

std::vector<double> ExactGates(const HeadRows& rows, double min_log_gate) {
  std::vector<double> c;
  double sum = 0;
  for (const float logit : rows.gate_logit) {
    const auto rounded = static_cast<double>(static_cast<float>(BFloat16(logit)));
    c.push_back(sum += LogForgetGate(rounded, min_log_gate));
  }
  return c;
}

TEST(PromiseTest, OffsetsOfHardForgettingPages) {
  struct Case {
    double step, share_of_ulp, log_f;
  };
  for (const Case& c : {Case{0x1p18, 0.15, 0.01}, Case{0x1p18, 0.85, 0.01}, Case{0x1p20, 0.3, 0.02},
                        Case{0x1p20, 0.45, 0.01}, Case{0x1p20, 0.7, 0.02}}) {
    const double ulp = c.step * 32 * 0x1p-23;
    HeadConstants head = HeadConstants::WithGain(16, 1);
    head.min_log_gate = -2 * c.step;
    std::vector<HeadRows> sequences;
    for (int i = 0; i < 32; ++i) {
      sequences.push_back(
          LostOffsets(c.step, c.share_of_ulp * ulp, c.log_f, -10 - 2.0 * i * c.log_f));
    }
    for (const int64_t rows : {64, 1}) {
      if (rows == 1 && c.share_of_ulp != 0.15) continue;  // as good as the others, but slow
      DeviceHeads heads(head, sequences);
      heads.Run(rows, false);
      for (int s = 0; s < 32; ++s) {
        const HeadRows& sequence = sequences[static_cast<size_t>(s)];
        const std::vector<double> gates = ExactGates(sequence, head.min_log_gate);
        double worst = kNoMass;
        for (int64_t row = 0; row < sequence.length(); ++row) {
          worst = std::max({worst, heads.LogLostMass(s, row, &gates), heads.LogLostMass(s, row)});
        }
        EXPECT_LE(worst, sequence.log_tolerance) << c.step << ' ' << c.share_of_ulp << ' ' << s;
        if (c.step < 0x1p20) {
          EXPECT_GT(heads.first_live(s), 0);
        }
      }
    }
  }
}

// Under RoPE a row's logit with its own key comes from rotated operands, whose rounding is relative
// to their norms, while the largest product gq gk of a dimension may be small. A row whose own key
// opposes its query in one rotation pair sees `zeros` zero keys and forgets just enough for B. (And
// the same without RoPE, where B needs no such term.)
HeadRows OpposedKey(const HeadConstants& head, size_t pair, size_t zeros) {
  const auto d = static_cast<size_t>(head.head_dim);
  HeadRows rows;
  rows.q.assign((zeros + 2) * d, 0.0F);
  rows.k = rows.q;
  rows.gate_logit.assign(zeros + 2, 20.0F);
  for (const size_t m : {pair, pair + d / 2}) {
    rows.q[zeros * d + m] = 1;
    rows.k[zeros * d + m] = -1;
  }
  const double needed = 10 + kAcpSlack + std::log(128) + head.self_logit_bound() + 1e-2;
  rows.gate_logit[zeros] = static_cast<float>(-needed * (1 + 0x1p-8));  // bf16 rounds it
  return rows;
}

void ExpectOwnLogitBound(bool rotates, float gain) {
  HeadConstants head = HeadConstants::WithGain(64, 1);
  for (size_t m = 0; m < 32; ++m) {
    head.q_norm[m] = head.k_norm[m + 32] = gain;
    head.q_norm[m + 32] = head.k_norm[m] = 1 / gain;
  }
  if (rotates) head.rope_frequency = Frequencies(64, 5e5);
  std::vector<HeadRows> sequences;
  std::vector<int64_t> zeros;
  for (size_t pair = 0; pair < 32; ++pair) {
    for (const int64_t count : {128, 131, 143, 157, 170, 185}) {
      sequences.push_back(OpposedKey(head, pair, static_cast<size_t>(count)));
      zeros.push_back(count);
    }
  }
  for (const bool portable : {false, true}) {
    head.portable = portable;
    DeviceHeads heads(head, sequences);
    heads.Step(zeros);
    heads.Step(std::vector<int64_t>(sequences.size(), 2));
    EXPECT_LE(heads.WorstExcess(), 0) << (rotates ? "RoPE, " : "") << "gain " << gain;
    EXPECT_GT(RowsThatLost(heads, static_cast<int>(sequences.size())), 0) << gain;
  }
}

TEST(PromiseTest, OwnKeyAgainstItsQuery) {
  for (const bool rotates : {true, false}) {
    for (const float gain : {1.0F, 6.0F, 16.0F, 64.0F, 1024.0F}) ExpectOwnLogitBound(rotates, gain);
  }
}

// The row certificate trusts computed logits. A row's own logit is near -8 gain^2, and it forgets
// 512 keys, all but the last two zero, by a little more than that: in three gates, for one of bf16
// would be too coarse, the keys between them opposing the query as its own does. What the row loses
// by leaving out the first 128 is known from a run that leaves out nothing; tolerances then lie
// around it.
constexpr size_t kHistory = 512;  // PrefillSm90 asks after four tiles

HeadRows OpposedLongKey(float gain, std::mt19937_64& rng) {
  std::normal_distribution<float> normal;
  constexpr size_t kHeadDim = 64;
  HeadRows rows;
  rows.q.assign((kHistory + 2) * kHeadDim, 0.0F);
  rows.k = rows.q;
  rows.gate_logit.assign(kHistory + 2, 20.0F);
  double q_square = 0, k_square = 0, product = 0;
  for (size_t m = 0; m < kHeadDim; ++m) {
    const auto q = static_cast<float>(BFloat16(normal(rng)));
    const auto k = static_cast<float>(BFloat16(-q - 0.2F * normal(rng)));
    rows.q[kHistory * kHeadDim + m] = q;
    for (size_t row = kHistory - 2; row <= kHistory; ++row) rows.k[row * kHeadDim + m] = k;
    q_square += static_cast<double>(q) * q;
    k_square += static_cast<double>(k) * k;
    product += static_cast<double>(q) * k;
  }
  double rest = 8.0 * gain * gain * product / std::sqrt(q_square * k_square) - 15;
  for (size_t row = kHistory - 2; row <= kHistory; ++row) {
    const double part = row == kHistory ? rest : rest * (1 - 0x1p-7);
    const BFloat16 logit(static_cast<float>(GateLogit(std::min(part, -1e-3))));
    rows.gate_logit[row] = static_cast<float>(logit);
    rest -= LogForgetGate(static_cast<double>(rows.gate_logit[row]), kNoMass);
  }
  return rows;
}

TEST(PromiseTest, RowCertificateOfLargeLogits) {
  for (const float gain : {4.0F, 60.0F, 300.0F}) {
    std::mt19937_64 rng(4);
    HeadConstants head = HeadConstants::WithGain(64, gain);
    std::vector<HeadRows> sequences;
    for (int i = 0; i < 256; ++i) sequences.push_back(OpposedLongKey(gain, rng));
    const int count = static_cast<int>(sequences.size());
    const std::vector<int64_t> history(sequences.size(), kHistory), rest(sequences.size(), 2);
    for (const bool portable : {false, true}) {
      head.portable = portable;
      DeviceHeads whole(head, sequences);
      whole.Step(history, false);
      whole.Step(rest, false);
      // What acp.h pays for the rounding of these logits; beyond it some rows stop.
      const double budget = kAcpSlack + (portable ? 0 : kWeightSumRounding) +
                            RowRounding(64, head.max_logit_bound(), 0, head.max_logit_bound());
      for (int s = 0; s < count; ++s) {
        HeadRows& sequence = sequences[static_cast<size_t>(s)];
        const double lost = whole.LogMassBefore(s, kHistory, 128);
        sequence.log_tolerance = lost + 2 * budget * std::pow((s - 128) / 128.0, 3);
      }
      DeviceHeads heads(head, sequences);
      heads.Step(history, false);
      heads.Step(rest);
      EXPECT_LE(heads.WorstExcess(), 0) << gain << (portable ? " portable" : "");
      EXPECT_GT(RowsThatLost(heads, count), 0) << gain;
    }
  }
}

// The row certificate trusts a row's sum of weights. A quarter of a million keys that weigh 1.77
// units in the last place of the row's own would, added one by one in float32, count as 2 each: in
// the lane that holds the own key the sum then rises by 0.0018 of itself.
TEST(PromiseTest, SumsOfManyKeys) {
  constexpr size_t kHeadDim = 32, kLength = size_t{1} << 18;
  HeadConstants head = HeadConstants::WithGain(kHeadDim, 1.649F);
  HeadRows rows;
  rows.q.assign(kLength * kHeadDim, 0.0F);
  std::fill(rows.q.end() - kHeadDim, rows.q.end(), 1.0F);
  rows.k = rows.q;
  rows.gate_logit.assign(kLength, 20.0F);
  rows.log_tolerance = kNoMass;
  for (const bool portable : {false, true}) {
    head.portable = portable;
    DeviceHeads heads(head, {rows});
    heads.Step({static_cast<int64_t>(kLength) - 64}, false);
    heads.Step({64});
    const auto last = static_cast<int64_t>(kLength) - 1;
    const double got = heads.stored(0).lse.back(), want = heads.ExactLse(0, last);
    EXPECT_GT(want, head.max_logit_bound() * 0.9);
    // Two roundings a page and those inside a tile, or those of tensor cores, and a float32 result.
    const double sums = 0x1p-24 * (2.0 * PagesFor(kLength) + kTileRows + want) +
                        (portable ? 0 : kWeightSumRounding);
    EXPECT_NEAR(got, want, sums + RowRounding(kHeadDim, head.max_logit_bound(), 0, 0))
        << (portable ? "portable" : "native");
  }
}

// What is stored depends on the tokens alone, not on the steps they came in: queries and keys bit
// by bit, gates but where a float64 sum in another order lies across the middle of two floats. Sums
// over pages move by float32 rounding of bounds; decisions that are not that close stay.
void ExpectSame(const HeadConstants& head, const DeviceHeads& one, const DeviceHeads& other,
                int s) {
  const StoredRows &a = one.stored(s), &b = other.stored(s);
  EXPECT_EQ(a.q, b.q);
  EXPECT_EQ(a.k, b.k);
  int different = 0;
  for (size_t row = 0; row < a.log_f_offset.size(); ++row) {
    const double offset = a.log_f_offset[row];
    different += offset != b.log_f_offset[row] ? 1 : 0;
    EXPECT_NEAR(offset, b.log_f_offset[row], 0x1p-23 * std::abs(offset));
  }
  EXPECT_LE(different, 1);
  EXPECT_EQ(one.first_live(s), other.first_live(s));
  const double rounding = 0x1p-19 * (1 + head.max_logit_bound());
  for (size_t p = 0; p < a.log_mass_bound.size(); ++p) {
    const double c = a.page_cum_log_f[p];
    EXPECT_NEAR(c, b.page_cum_log_f[p], 0x1p-43 * std::abs(c));
    EXPECT_NEAR(a.log_mass_bound[p], b.log_mass_bound[p], rounding);
    EXPECT_NEAR(a.log_denominator_bound[p], b.log_denominator_bound[p], rounding);
  }
}

TEST(PromiseTest, TheSameHoweverRowsCome) {
  std::mt19937_64 rng(5);
  for (const int head_dim : {16, 32, 64, 128}) {
    for (const bool rotates : {false, true}) {
      HeadConstants head = RandomHead(head_dim, rotates, rng);
      head.shift = true;
      std::vector<HeadRows> sequences;
      for (const double mean : {0.0, 2.0, 4.0, 9.0}) {
        sequences.push_back(RandomRows(head_dim, 640, mean, rng));
      }
      DeviceHeads one(head, sequences);
      one.Run(1, false);
      for (const int64_t step : {640, 64, 37}) {
        SCOPED_TRACE(::testing::Message() << head_dim << (rotates ? " RoPE " : " ") << step);
        DeviceHeads other(head, sequences);
        other.Run(step, false);
        for (int s = 0; s < static_cast<int>(sequences.size()); ++s) {
          ExpectSame(head, one, other, s);
        }
      }
    }
  }
}

}  // namespace
}  // namespace fox::cuda::testing
