// The schedule against the host: tiles from the list of sequences, gates from the oracle,
// boundaries from kernels/paging/acp.h in float64, and from the attention mass that they really
// cost.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/cuda/attention/varlen/kernels.h"
#include "tests/kernels/cuda/attention/varlen/device_varlen.h"
#include "tests/kernels/cuda/device_cache.h"

namespace fox::cuda::testing {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
const std::vector<int> kRagged = {1, 2, 0, 63, 64, 65, 127, 128, 129, 0, 1000, 5};

std::vector<VarlenTile> ExpectedTiles(const VarlenInputs& inputs) {
  std::vector<VarlenTile> tiles;
  for (int s = 0; s < inputs.num_seqs(); ++s) {
    const int length = inputs.length(s), first = static_cast<int>(tiles.size());
    const int count = (length + kVarlenTile - 1) / kVarlenTile;
    for (int i = 0; i < count; ++i) {
      const int position = i * kVarlenTile;
      tiles.push_back({s, inputs.BatchOf(s), inputs.begin[static_cast<size_t>(s)] + position,
                       std::min(kVarlenTile, length - position), position, first,
                       first + count - 1});
    }
  }
  return tiles;
}

void ExpectTiles(const VarlenInputs& inputs, const HostState& host) {
  const std::vector<VarlenTile> expected = ExpectedTiles(inputs);
  ASSERT_EQ(host.num_tiles, static_cast<int>(expected.size()));
  EXPECT_EQ(host.work_counter, 0);
  for (size_t t = 0; t < expected.size(); ++t) {
    const VarlenTile &got = host.tiles[t], &want = expected[t];
    EXPECT_EQ(std::memcmp(&got, &want, sizeof(want)), 0) << t;
  }
}

// Offsets are rounded to float32 once; float64 sums of n terms err by n 2^-53 at most.
void ExpectGates(const VarlenInputs& inputs, const DeviceVarlen& device, const HostState& host,
                 const std::vector<double>& c) {
  for (int h = 0; h < inputs.shape.q_heads; ++h) {
    for (int t = 0; t < host.num_tiles; ++t) {
      const VarlenTile& tile = host.tiles[static_cast<size_t>(t)];
      const auto own = static_cast<size_t>(h * device.state().max_tiles + t);
      for (int i = 0; i < kVarlenTile; ++i) {
        const auto offset =
            static_cast<double>(host.log_f_offset[own * kVarlenTile + static_cast<size_t>(i)]);
        const double want =
            c[inputs.RowIndex(tile.seq, tile.position + std::min(i, tile.count - 1), h)];
        ASSERT_NEAR(host.cum_log_f[own] + offset, want,
                    0x1p-24 * std::fabs(offset) + inputs.tokens * 0x1p-52 * std::fabs(want))
            << "head " << h << " tile " << t << " row " << i;
      }
    }
  }
}

void ExpectSchedule(const VarlenCase& shape) {
  VarlenInputs inputs(shape);
  DeviceVarlen device(inputs);
  device.Schedule();
  const HostState host = device.ToHost();
  ExpectTiles(inputs, host);
  const std::vector<double> c = inputs.CumulativeGates();
  ExpectGates(inputs, device, host, c);
  for (int h = 0; h < shape.q_heads; ++h) {
    for (int t = 0; t < host.num_tiles; ++t) {
      EXPECT_EQ(host.first_page[static_cast<size_t>(h * device.state().max_tiles + t)], 0)
          << "head " << h << " tile " << t;
    }
  }
}

TEST(ScheduleTest, RaggedLengthsInBatchesAndPacked) {
  for (const bool head_first : {false, true}) {
    // More than a block of warps.
    VarlenCase batch = WithHeads(BatchCase(kRagged), 9, 1, 32, {2, 5, -1, 8});
    VarlenCase packed = PackedCase(kRagged);
    batch.head_first = packed.head_first = head_first;
    packed.tokens = 2000;
    ExpectSchedule(batch);
    ExpectSchedule(packed);
  }
}

// More sequences than threads; more tiles, so that each has a run of them.
TEST(ScheduleTest, MoreThanThreads) {
  std::vector<int> lengths;
  for (int s = 0; s < 3000; ++s) lengths.push_back(s % 700 == 0 ? 300 : s % 5);
  ExpectSchedule(WithHeads(PackedCase(lengths), 1, 1, 32, {2}));
  ExpectSchedule(WithHeads(PackedCase({100, 150000, 3}), 1, 1, 32, {2}));
}

TEST(ScheduleTest, OnlyEmptySequences) {
  VarlenCase shape = PackedCase({0, 0, 0});
  shape.tokens = 70;
  ExpectSchedule(shape);
}

// A caller's lists are not checked: with any contents, no tile lies outside of the arrays.
TEST(ScheduleTest, SequencesAreCutOffAtTheRow) {
  VarlenInputs inputs(BatchCase({200, 300}));
  DeviceVarlen device(inputs);
  const DeviceArray<int32_t> begin(std::vector<int32_t>{-50, 250}),
      end(std::vector<int32_t>{200, 9000});
  device.params().seqs.begin = begin.data();
  device.params().seqs.end = end.data();
  device.Schedule();
  inputs.begin = {0, 250};
  inputs.end = {200, 300};
  ExpectTiles(inputs, device.ToHost());
}

TEST(ScheduleTest, StrongGatesAndCuts) {
  VarlenInputs inputs(WithHeads(PackedCase({3000, 500}), 2, 2, 64, {12, 0}));
  for (int t = 7; t < 3500; t += 31) {
    inputs.log_fgate.At(0, t, t % 2) = t % 3 == 0 ? -kInfinity : t % 3 == 1 ? -1e9 : -50;
  }
  DeviceVarlen device(inputs);
  for (double& gate : inputs.log_fgate.values) gate = std::max(gate, kLeastLogGate);
  device.Schedule();
  const std::vector<double> c = inputs.CumulativeGates();
  ExpectGates(inputs, device, device.ToHost(), c);
}

class FirstPageTest : public ::testing::TestWithParam<AcpMode> {};

VarlenCase PrunedCase(int head_dim = 64) {
  VarlenCase shape =
      WithHeads(PackedCase({2500, 100, 1, 1300}), 6, 3, head_dim, {0, 1, 2, 3, 5, 9});
  shape.tokens = 4000;
  return shape;
}

TEST_P(FirstPageTest, RowsLoseAtMostEps) {
  VarlenCase shape = PrunedCase();
  shape.gate_means = {4, 3.5, 1, 1, 2, 3};
  VarlenInputs inputs(shape);
  // Two heads whose old keys have the largest logits and whose late ones the least: the worst case
  // of the certified bound, but for the grain of pages.
  for (int t = 0; t < inputs.tokens; ++t) {
    for (int m = 0; m < shape.head_dim; ++m) {
      for (int h = 0; h < 2; ++h) inputs.q.At(0, t, h, m) = 1;
      inputs.k.At(0, t, 0, m) = t < 1000 ? 1 : -1;
    }
  }
  DeviceVarlen device(inputs, GetParam());
  device.Schedule();
  const std::vector<int32_t> first_key = device.FirstKeys();
  const std::vector<double> full = inputs.Forward(), seen = inputs.Forward(first_key);
  double worst = 0;
  for (size_t i = 0; i < full.size(); ++i) worst = std::max(worst, -std::expm1(seen[i] - full[i]));
  EXPECT_LE(worst, std::exp(-10.0));
  EXPECT_GT(worst, GetParam() == AcpMode::kCertified ? std::exp(-13.0) : 0);
  EXPECT_GT(*std::max_element(first_key.begin(), first_key.end()), 0);
}

// In every mode, kernels rely on boundaries that do not fall along a sequence, and a broken
// sequence does not affect others.
TEST_P(FirstPageTest, NeverFallsWhateverTheGatesAre) {
  VarlenInputs inputs(PrunedCase());
  const auto first_pages = [&] {
    DeviceVarlen device(inputs, GetParam());
    device.Schedule();
    const HostState host = device.ToHost();
    std::vector<std::vector<int>> of_head;
    for (int h = 0; h < inputs.shape.q_heads; ++h) {
      SCOPED_TRACE(::testing::Message() << "head " << h);
      const auto first = host.first_page.begin() + h * device.state().max_tiles;
      of_head.emplace_back(first, first + host.num_tiles);
      for (size_t t = 1; t < of_head.back().size(); ++t) {
        const VarlenTile& tile = host.tiles[t];
        EXPECT_GE(of_head.back()[t], tile.position == 0 ? 0 : of_head.back()[t - 1])
            << "tile " << t;
        EXPECT_LE(of_head.back()[t], tile.position / kVarlenPage) << "tile " << t;
      }
    }
    return of_head;
  };
  const auto honest = first_pages();
  for (int t = 1000; t < 1500; ++t) inputs.log_fgate.At(0, t, 1) = t % 100 == 0 ? 30 : 0.1;
  inputs.log_fgate.At(0, 2000, 2) = std::numeric_limits<double>::quiet_NaN();
  inputs.k.At(0, 1700, 1) = std::numeric_limits<double>::quiet_NaN();  // of heads 2 and 3
  const auto broken = first_pages();
  constexpr size_t kFirstTiles = 20;  // of the first sequence, the broken one
  for (size_t h = 0; h < honest.size(); ++h) {
    for (size_t t = 0; t < honest[h].size(); ++t) {
      if (t < kFirstTiles && h >= 1 && h <= 3) continue;
      EXPECT_EQ(broken[h][t], honest[h][t]) << "head " << h << " tile " << t;
    }
  }
  EXPECT_EQ(broken[2][kFirstTiles - 1], 0);
}

INSTANTIATE_TEST_SUITE_P(Modes, FirstPageTest,
                         ::testing::Values(AcpMode::kPaper, AcpMode::kCertified),
                         [](const auto& mode) { return ModeName(mode.param); });

}  // namespace
}  // namespace fox::cuda::testing
