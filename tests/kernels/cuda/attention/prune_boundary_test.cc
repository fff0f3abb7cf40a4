// PruneBoundaries against the host's page by page scan of the same rule, over modes, heads, batches
// and chunks; exact, for both compare the same float64 numbers.
#include "kernels/cuda/attention/prune_boundary.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "tests/kernels/cuda/device_cache.h"

namespace fox::cuda {
namespace {

using testing::CacheOptions;
using testing::CacheSequence;
using testing::DeviceCache;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

void ExpectBoundaries(const CacheOptions& options, int spare_tiles) {
  DeviceCache cache(options);
  cache.PoisonBoundaries();
  const int max_tiles = cache.num_tiles() + spare_tiles;
  ASSERT_EQ(
      PruneBoundaries(cache.batch(), cache.params(), cache.kv(), cache.work(), max_tiles, nullptr),
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

TEST_P(PruneBoundaryTest, RaggedBatch) {
  for (const bool evict : {true, false}) {
    CacheOptions options = RaggedOptions(GetParam());
    options.evict = evict;
    ExpectBoundaries(options, 0);
    ExpectBoundaries(options, 2);
  }
}

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

// Only one-row sequences: nothing to find, and nothing of the boundary array is written.
TEST_P(PruneBoundaryTest, NoTiles) {
  CacheOptions options = RaggedOptions(GetParam());
  for (CacheSequence& sequence : options.sequences) sequence.rows = 1;
  ExpectBoundaries(options, 1);
}

INSTANTIATE_TEST_SUITE_P(Modes, PruneBoundaryTest,
                         ::testing::Values(AcpMode::kOff, AcpMode::kPaper, AcpMode::kCertified),
                         [](const auto& mode) {
                           return std::string(mode.param == AcpMode::kOff     ? "Off"
                                              : mode.param == AcpMode::kPaper ? "Paper"
                                                                              : "Certified");
                         });

// Without QK-norm the paper's bound knows nothing before the queries are there.
TEST(PruneBoundary, InfiniteLogitBoundKeepsAll) {
  CacheOptions options = RaggedOptions(AcpMode::kPaper);
  options.evict = false;
  DeviceCache cache(options);
  cache.PoisonBoundaries();
  const testing::DeviceArray<double> infinite(
      std::vector<double>(static_cast<size_t>(options.q_heads), kInfinity));
  AttentionParams params = cache.params();
  params.bound.any_logit = infinite.data();
  ASSERT_EQ(
      PruneBoundaries(cache.batch(), params, cache.kv(), cache.work(), cache.num_tiles(), nullptr),
      cudaSuccess);
  std::vector<int32_t> expected = cache.boundaries();
  for (int32_t& left : expected) left = std::min(left, 0);  // -1 behind the tiles
  EXPECT_EQ(cache.boundary_array().ToHost(), expected);
}

}  // namespace
}  // namespace fox::cuda
