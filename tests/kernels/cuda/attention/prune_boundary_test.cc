// PruneBoundaries against the host's page by page scan of the same rule, over modes, heads, batches
// and chunks; exact, for both compare the same float64 numbers.
#include "kernels/cuda/attention/prune_boundary.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>

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

// Without a bound on logits the paper's bound drops nothing.
TEST(PruneBoundaryPaperTest, DropsNothingWithoutQkNorm) {
  CacheOptions options = RaggedOptions(AcpMode::kPaper);
  options.qk_norm = false;
  ExpectBoundaries(options, 1);
  const DeviceCache cache(options);
  for (const int32_t boundary : cache.boundaries()) EXPECT_LE(boundary, 0);
}

}  // namespace
}  // namespace fox::cuda::testing
