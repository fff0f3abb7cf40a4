// PruneBoundaries against the host's page by page scan of the same rule, over modes, heads, batches
// and chunks; exact, for both compare the same float64 numbers. Without QK-norm, and so for
// FindFirstVisiblePages, exact but for float32 sums over queries and keys.
#include "kernels/cuda/attention/prune_boundary.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <string>
#include <vector>

#include "kernels/cuda/paging/paging.h"
#include "tests/kernels/cuda/device_cache.h"

namespace fox::cuda::testing {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

void ExpectBoundaries(const CacheOptions& options, int spare_tiles) {
  DeviceCache cache(options);
  cache.PoisonBoundaries();
  const int max_tiles = cache.num_tiles() + spare_tiles;
  ASSERT_EQ(PruneBoundaries(cache.batch(), cache.params(), cache.kv(), cache.schedule(), max_tiles,
                            nullptr),
            cudaSuccess);
  EXPECT_EQ(cache.boundary_array().ToHost(), cache.boundaries());
  EXPECT_EQ(cache.tile_counter_array().ToHost()[0], 0);
}

CacheOptions RaggedOptions(AcpMode acp) {
  CacheOptions options;
  options.acp = acp;
  options.q_heads = 6;
  options.kv_heads = 3;
  options.head_dim = 16;
  options.gate_means = {1, 9, 3, 5, 0, 7};
  options.sequences = {{3000, 3000, -10, 3}, {1, 1, -10, -1},   {700, 600, -8, 0},
                       {2500, 1, -10, 1},    {65, 65, -10, 2},  {4100, 40, -10, 6},
                       {64, 64, -10, 5},     {1900, 2, -10, 4}, {1000, 900, -kInfinity, 7}};
  return options;
}

class PruneBoundaryTest : public ::testing::TestWithParam<AcpMode> {};

TEST_P(PruneBoundaryTest, OneHeadOfItsOwnAndManyTiles) {
  CacheOptions options;
  options.acp = GetParam();
  options.q_heads = options.kv_heads = 1;
  options.head_dim = 16;
  options.layers = 1;
  options.layer = 0;
  options.gate_means = {6};
  // More than 1024 pages to search: three rounds.
  options.sequences = {{80000, 80000, -10, 0}};
  options.evict = false;
  ExpectBoundaries(options, 1);
}

TEST_P(PruneBoundaryTest, StrongGates) {
  CacheOptions options = RaggedOptions(GetParam());
  options.strong_gate_rate = 0.01;
  ExpectBoundaries(options, 1);
}

INSTANTIATE_TEST_SUITE_P(Modes, PruneBoundaryTest,
                         ::testing::Values(AcpMode::kOff, AcpMode::kPaper, AcpMode::kCertified),
                         [](const auto& mode) { return ModeName(mode.param); });

// Without QK-norm the rows' own queries decide. Boundaries may differ from the host's where the
// kernel's float32 sums may; whatever they are, no row loses more than eps.
class MeasuredBoundaryTest : public ::testing::TestWithParam<int> {};

CacheOptions MeasuredOptions(int head_dim) {
  CacheOptions options = RaggedOptions(AcpMode::kPaper);
  options.qk_norm = false;
  options.head_dim = head_dim;
  options.gate_means = {0, 9, 2, 1, 3, 4};
  options.sequences = {{1100, 1100, -10, 3}, {1, 1, -10, -1},  {700, 600, -8, 0},
                       {2500, 1, -10, 1},    {65, 65, -10, 2}, {1900, 40, -10, 6},
                       {64, 64, -10, 5},     {1900, 2, -3, 4}, {300, 200, -kInfinity, 7},
                       {1290, 1, -10, 8}};
  return options;
}

void ExpectBetween(const std::vector<int32_t>& got, const std::vector<int32_t>& least,
                   const std::vector<int32_t>& most) {
  ASSERT_EQ(got.size(), least.size());
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_GE(got[i], least[i]) << "at " << i;
    EXPECT_LE(got[i], most[i]) << "at " << i;
  }
}

TEST_P(MeasuredBoundaryTest, TilesSkipWhatTheirQueriesAllow) {
  const CacheOptions options = MeasuredOptions(GetParam());
  DeviceCache cache(options);
  cache.PoisonBoundaries();
  ASSERT_EQ(PruneBoundaries(cache.batch(), cache.params(), cache.kv(), cache.schedule(),
                            cache.num_tiles() + 1, nullptr),
            cudaSuccess);
  EXPECT_EQ(cache.tile_counter_array().ToHost()[0], 0);
  const std::vector<int32_t> got = cache.boundary_array().ToHost();
  ExpectBetween(got, cache.Boundaries(1), cache.Boundaries(-1));
  int skipped = 0;
  double worst = 0;
  for (int t = 0; t < cache.num_tiles(); ++t) {
    const RowBlock& tile = cache.tiles()[static_cast<size_t>(t)];
    const CacheSequence& sequence = options.sequences[static_cast<size_t>(tile.seq)];
    const int64_t first = tile.position - (sequence.length - sequence.rows);
    for (int h = 0; h < options.q_heads; ++h) {
      const int left = got[static_cast<size_t>(h * cache.schedule().max_tiles + t)];
      skipped += left;
      for (int r = 0; left > 0 && r < tile.count; r += 9) {
        const double mass = cache.MassBefore(tile.seq, first + r, h, left);
        ASSERT_LE(mass, std::exp(sequence.log_tolerance)) << "tile " << t << " head " << h;
        worst = std::max(worst, mass);
      }
    }
  }
  EXPECT_GT(skipped, 0);
  EXPECT_GT(worst, 0);
}

TEST_P(MeasuredBoundaryTest, DecodingRowsSkipWhatTheirQueriesAllow) {
  const CacheOptions options = MeasuredOptions(GetParam());
  DeviceCache cache(options);
  ASSERT_TRUE(UsesPerQueryBound(cache.params()));
  const DeviceArray<int32_t> window(static_cast<size_t>(cache.schedule().max_seq_heads));
  StepSchedule schedule = cache.schedule();
  schedule.first_visible_page = window.data();
  ASSERT_EQ(FindFirstVisiblePages(cache.batch(), cache.params(), cache.kv(), schedule, nullptr),
            cudaSuccess);
  std::vector<int32_t> got = window.ToHost();
  const size_t seq_heads = cache.Windows(0).size();
  for (size_t i = seq_heads; i < got.size(); ++i) EXPECT_EQ(got[i], -1) << "behind the seq_heads";
  got.resize(seq_heads);
  ExpectBetween(got, cache.Windows(1), cache.Windows(-1));
  int skipped = 0;
  for (size_t i = 0; i < seq_heads; ++i) {
    if (got[i] <= 0) continue;
    const int s = static_cast<int>(i) / options.q_heads, h = static_cast<int>(i) % options.q_heads;
    EXPECT_LE(cache.MassBefore(s, 0, h, got[i]),
              std::exp(options.sequences[static_cast<size_t>(s)].log_tolerance))
        << "sequence " << s << " head " << h;
    skipped += got[i];
  }
  EXPECT_GT(skipped, 0);

  ASSERT_EQ(PlanSplits(cache.batch(), cache.kv(), schedule, options.layer, nullptr), cudaSuccess);
  const std::vector<SeqHead> planned = cache.seq_head_array().ToHost();
  size_t place = static_cast<size_t>(options.layer) * static_cast<size_t>(schedule.max_seq_heads);
  const int group = cache.kv().shape.group(), together = HeadsTogether(cache.kv().shape);
  int32_t items = 0;
  for (size_t i = 0; i < seq_heads; ++i) {
    if (got[i] < 0) continue;
    const int head = static_cast<int>(i) % options.q_heads % group;
    if (head % together != 0) continue;
    const auto from = got.begin() + static_cast<std::ptrdiff_t>(i);
    const int first = *std::min_element(from, from + std::min(together, group - head));
    const int64_t length = options.sequences[i / static_cast<size_t>(options.q_heads)].length;
    const SeqHead& seq_head = planned[place++];
    EXPECT_EQ(seq_head.index, static_cast<int>(i));
    EXPECT_EQ(seq_head.first_live, first);
    EXPECT_EQ(seq_head.begin, items);
    items += NumSplits(first, PagesFor(length) - 1);
    EXPECT_EQ(seq_head.end, items);
  }
}

INSTANTIATE_TEST_SUITE_P(HeadDim, MeasuredBoundaryTest, ::testing::Values(16, 32, 64, 128),
                         [](const auto& head_dim) { return std::to_string(head_dim.param); });

}  // namespace
}  // namespace fox::cuda::testing
