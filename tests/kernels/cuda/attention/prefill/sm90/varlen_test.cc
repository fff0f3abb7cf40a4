// VarlenPrefillSm80 and VarlenPrefillSm90 against float64 attention, for every case of
// device_varlen.h, with larger logits and with pruning.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "kernels/cuda/attention/prefill/prefill.h"
#include "tests/kernels/cuda/attention/varlen/device_varlen.h"
#include "tests/kernels/cuda/device_cache.h"

namespace fox::cuda::testing {
namespace {

constexpr double kLog2E = 1.4426950408889634;

using VarlenPrefillKernel = decltype(&VarlenPrefillSm80);

std::vector<VarlenCase> ForwardCases() {
  // Logits that outgrow the maximum of the diagonal tile, far keys above all.
  VarlenCase large = WithHeads(PackedCase({1000, 400}), 2, 2, 0, {9, 12});
  large.name = "LargeLogits";
  large.scale = 0.5;
  VarlenCase strong = WithHeads(PackedCase({500, 777}), 2, 2, 0, {5, -30});
  strong.name = "VeryStrongGates";
  strong.strong_gate_rate = 0.03;
  strong.strong_gate = -100;
  // Local and global heads; more work tiles than a device has multiprocessors.
  VarlenCase paper = WithHeads(PackedCase({2500, 130, 1300}), 10, 2, 0, {0, 1, 2, 4, 9});
  VarlenCase certified = paper;
  paper.name = "Paper";
  paper.acp = AcpMode::kPaper;
  certified.name = "Certified";
  certified.acp = AcpMode::kCertified;
  return VarlenCases({large, strong, paper, certified});
}

// The results of a run, on the host.
struct VarlenRun {
  HostState state;
  int max_tiles = 0;
  VarlenArray<double> out;
  std::vector<int32_t> first_key;

  size_t Index(int head, size_t tile) const { return static_cast<size_t>(head * max_tiles) + tile; }
};

void Run(VarlenPrefillKernel kernel, DeviceVarlen& device, VarlenRun& run) {
  ASSERT_NO_FATAL_FAILURE(device.Schedule());
  device.PoisonOutputs();
  ASSERT_EQ(kernel(device.params(), device.state(), nullptr), cudaSuccess);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  run.state = device.ToHost();
  run.max_tiles = device.state().max_tiles;
  run.out = device.Out();
  run.first_key = device.FirstKeys();
}

// Float64 results for the keys that a run has seen, and the error that a correct kernel may make,
// as in device_cache_oracle.cc: all to first order and with a factor of two or more to spare.
//   weight j, relative:  its product, added in float32: 2^-19 |q||k| scale; the gates, relative to
//                        the row tile's first token and to key tiles' bases, rounded a few times:
//                        2^-21 (|c_ref - c_j| + |c_j - base| + 1); exp2: 2^-21
//   sums over j:         an addition and a rescaling a page: 2^-21 pages
//   weight j, in out:    bf16: 2^-8;  out: bf16: 2^-8 of the stored value
//   sum over j, as a sum: sum_rounding
class Exact {
 public:
  Exact(const VarlenInputs& inputs, const VarlenRun& run, double sum_rounding)
      : inputs_(inputs),
        sum_rounding_(sum_rounding),
        exact_(inputs),
        absolute_(inputs),
        c_(exact_.CumulativeGates()),
        lse_(exact_.Forward(run.first_key)) {
    for (double& x : absolute_.v.values) x = std::abs(x);
    absolute_.Forward(run.first_key);
    max_logit_ = MaxNorm(inputs.q) * MaxNorm(inputs.k) * inputs.scale;
  }

  // True if all outputs of one row are right.
  bool CheckRow(const VarlenTile& tile, int first_page, int head, int row, const VarlenRun& run,
                float lse) const {
    const double error = WeightError(tile, first_page, head, row);
    const int token = tile.first_token + row;
    for (int m = 0; m < inputs_.shape.head_dim; ++m) {
      const double o = exact_.out.At(tile.batch, token, head, m);
      const double absolute = absolute_.out.At(tile.batch, token, head, m);
      const double before =
          error * absolute + (error + sum_rounding_) * std::abs(o) + 0x1p-8 * absolute;
      const double tolerance = before + 0x1p-8 * (std::abs(o) + before) + 1e-30;
      const double got = run.out.At(tile.batch, token, head, m);
      if (std::abs(got - o) <= tolerance) continue;  // false for NaN
      ADD_FAILURE() << "sequence " << tile.seq << " row " << tile.position + row << " head " << head
                    << " dim " << m << ": " << got << ", not " << o << " +- " << tolerance;
      return false;
    }
    const double log_sum =
        kLog2E * (lse_[Index(tile, head, row)] - C(tile, head, row) + C(tile, head, 0));
    const double tolerance = kLog2E * (error + sum_rounding_) + 0x1p-21 * (std::abs(log_sum) + 1);
    if (std::abs(lse - log_sum) <= tolerance) return true;
    ADD_FAILURE() << "sequence " << tile.seq << " row " << tile.position + row << " head " << head
                  << ": log sum " << lse << ", not " << log_sum << " +- " << tolerance;
    return false;
  }

 private:
  size_t Index(const VarlenTile& tile, int head, int row) const {
    return inputs_.RowIndex(tile.seq, tile.position + row, head);
  }
  double C(const VarlenTile& tile, int head, int row) const { return c_[Index(tile, head, row)]; }

  double MaxNorm(const VarlenArray<double>& array) const {
    double largest = 0;
    inputs_.ForEachToken([&](int, int batch, int token, int) {
      for (int h = 0; h < array.heads; ++h) {
        const double* x = &array.At(batch, token, h);
        largest = std::max(largest, std::inner_product(x, x + array.head_dim, x, 0.0));
      }
    });
    return std::sqrt(largest);
  }

  // Keys that weigh less than e^-60 of the row's own are left out: their errors do not matter.
  double WeightError(const VarlenTile& tile, int first_page, int head, int row) const {
    const int i = tile.position + row, first = first_page * kVarlenPage;
    const double reference = C(tile, head, 0), own = C(tile, head, row);
    double gate = 0;
    for (int j = i; j >= first; --j) {
      const double c = c_[inputs_.RowIndex(tile.seq, j, head)];
      if (own - c < -60 - 2 * max_logit_) break;
      const int before = j / kVarlenTile * kVarlenTile - 1;
      const double base = before < 0 ? 0 : c_[inputs_.RowIndex(tile.seq, before, head)];
      gate = std::max(gate, std::abs(reference - c) + std::abs(c - base));
    }
    const int pages = i / kVarlenPage + 1 - first_page;
    return 0x1p-19 * max_logit_ + 0x1p-21 * (gate + 2 + pages);
  }

  const VarlenInputs& inputs_;
  const double sum_rounding_;
  VarlenInputs exact_, absolute_;
  const std::vector<double> c_, lse_;
  double max_logit_ = 0;
};

void CheckOutputs(const VarlenInputs& inputs, VarlenRun& run, double sum_rounding) {
  const Exact exact(inputs, run, sum_rounding);
  int wrong = 0;
  for (size_t t = 0; t < run.state.tiles.size(); ++t) {
    SCOPED_TRACE(::testing::Message() << "tile " << t);
    const VarlenTile& tile = run.state.tiles[t];
    for (int h = 0; h < inputs.shape.q_heads; ++h) {
      const size_t index = run.Index(h, t);
      for (int r = 0; r < kVarlenTile; ++r) {
        const float lse = run.state.lse[index * kVarlenTile + static_cast<size_t>(r)];
        if (r >= tile.count) {
          ASSERT_EQ(lse, std::numeric_limits<float>::infinity()) << "tile " << t << " row " << r;
          continue;
        }
        if (!exact.CheckRow(tile, run.state.first_page[index], h, r, run, lse)) ++wrong;
        ASSERT_LT(wrong, 5) << "head " << h << " row " << r;
        // Checked rows become NaN: all others must be untouched.
        double* row = &run.out.At(tile.batch, tile.first_token + r, h);
        std::fill_n(row, inputs.shape.head_dim, std::numeric_limits<double>::quiet_NaN());
      }
    }
  }
  EXPECT_TRUE(std::all_of(run.out.values.begin(), run.out.values.end(), [](double x) {
    return std::isnan(x);
  })) << "wrote to tokens of no sequence, or between rows";
}

// Twice, with the same bits. `sum_rounding`: of the sum of a row's weights, relative.
void ExpectVarlenPrefill(VarlenPrefillKernel kernel, const VarlenCase& c, double sum_rounding) {
  VarlenInputs inputs(c);
  DeviceVarlen device(inputs, c.acp);
  VarlenRun run, again;
  ASSERT_NO_FATAL_FAILURE(Run(kernel, device, run));
  ASSERT_NO_FATAL_FAILURE(Run(kernel, device, again));
  const std::vector<VarlenTile>& tiles = run.state.tiles;
  int64_t tokens = 0, expected = 0;
  for (const VarlenTile& tile : tiles) tokens += tile.count;
  for (int s = 0; s < inputs.num_seqs(); ++s) expected += inputs.length(s);
  ASSERT_EQ(tokens, expected);
  int last = 0;
  for (size_t t = 0; t < tiles.size(); ++t) {
    for (int h = 0; h < c.q_heads; ++h) {
      SCOPED_TRACE(::testing::Message() << "tile " << t << " head " << h);
      const size_t index = run.Index(h, t);
      last = std::max(last, run.state.first_page[index]);
      const auto row = static_cast<std::ptrdiff_t>(index * kVarlenTile);
      ASSERT_TRUE(std::equal(run.state.lse.begin() + row, run.state.lse.begin() + row + kVarlenTile,
                             again.state.lse.begin() + row));
    }
  }
  EXPECT_EQ(last > 4, c.acp != AcpMode::kOff || c.random_pages) << last;
  ASSERT_EQ(std::memcmp(run.out.values.data(), again.out.values.data(),
                        run.out.values.size() * sizeof(double)),
            0);
  CheckOutputs(inputs, run, sum_rounding);
}

class VarlenPrefillTest : public ::testing::TestWithParam<VarlenCase> {};

TEST_P(VarlenPrefillTest, Sm80MatchesFloat64) {
  ExpectVarlenPrefill(VarlenPrefillSm80, GetParam(), 0);
}

TEST_P(VarlenPrefillTest, Sm90MatchesFloat64) {
  if (!HasVarlenPrefillSm90()) GTEST_SKIP() << "no code for sm_90a, or no such device";
  ExpectVarlenPrefill(VarlenPrefillSm90, GetParam(), kBf16Rounding);
}

INSTANTIATE_TEST_SUITE_P(Cases, VarlenPrefillTest, ::testing::ValuesIn(ForwardCases()),
                         CaseName<VarlenCase>);

}  // namespace
}  // namespace fox::cuda::testing
