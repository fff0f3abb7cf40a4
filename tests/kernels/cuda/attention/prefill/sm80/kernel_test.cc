// PrefillSm80 against float64 attention, for every case of prefill_cases.h.
#include <gtest/gtest.h>

#include "kernels/cuda/attention/prefill/prefill.h"
#include "tests/kernels/cuda/attention/prefill/prefill_cases.h"

namespace fox::cuda {
namespace {

class PrefillSm80Test : public ::testing::TestWithParam<testing::PrefillCase> {};

TEST_P(PrefillSm80Test, MatchesFloat64) { testing::ExpectPrefill(PrefillSm80, GetParam(), 0); }

INSTANTIATE_TEST_SUITE_P(Cases, PrefillSm80Test,
                         ::testing::ValuesIn(testing::PrefillCases({16, 32, 64, 128})),
                         testing::CaseName);

// Of 65,535, as of 8.4 million tokens.
TEST(PrefillSm80Test, TakesMoreTilesThanAGridsSecondDimension) {
  testing::CacheOptions options;
  options.head_dim = 64;
  options.sequences = {{300, 300, -10, 0}};
  testing::DeviceCache cache(options);
  constexpr int kTiles = 70000;
  ASSERT_EQ(
      PrefillSm80(cache.batch(), cache.params(), cache.kv(), cache.schedule(), kTiles, nullptr),
      cudaSuccess);
  cache.CheckOutputs(testing::RowKind::kPrefill, 0);
}

TEST(PrefillSm80Test, RefusesOtherHeadDims) {
  testing::CacheOptions options;
  options.head_dim = 48;
  options.sequences = {{70, 70, -10, 0}};
  const testing::DeviceCache cache(options);
  EXPECT_EQ(PrefillSm80(cache.batch(), cache.params(), cache.kv(), cache.schedule(), 1, nullptr),
            cudaErrorInvalidValue);
}

}  // namespace
}  // namespace fox::cuda
