// PrefillSm90 against float64 attention, for every case of prefill_cases.h.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/cuda/attention/prefill/prefill.h"
#include "tests/kernels/cuda/attention/prefill/prefill_cases.h"

namespace fox::cuda {
namespace {

class PrefillSm90Test : public ::testing::TestWithParam<testing::PrefillCase> {
 protected:
  void SetUp() override {
    if (!HasPrefillSm90()) GTEST_SKIP() << "no code for sm_90a, or no such device";
  }
};

TEST_P(PrefillSm90Test, MatchesFloat64) {
  testing::ExpectPrefill(PrefillSm90, GetParam(), testing::kBf16Rounding);
}

// With a small bound on logits the softmax does without maxima; without one it follows them. Here
// once more without: the cases whose far keys outweigh near ones, and those with the widest range
// of gates.
class PrefillSm90UnboundedTest : public ::testing::TestWithParam<testing::PrefillCase> {
 protected:
  void SetUp() override {
    if (!HasPrefillSm90()) GTEST_SKIP() << "no code for sm_90a, or no such device";
  }
};

TEST_P(PrefillSm90UnboundedTest, MatchesFloat64) {
  testing::DeviceCache cache(GetParam().options);
  AttentionParams params = cache.params();
  params.bound.max_logit_bound = nullptr;
  ASSERT_EQ(
      PrefillSm90(cache.batch(), params, cache.kv(), cache.schedule(), cache.num_tiles(), nullptr),
      cudaSuccess);
  cache.CheckOutputs(testing::RowKind::kPrefill, testing::kBf16Rounding);
}

std::vector<testing::PrefillCase> UnboundedCases() {
  std::vector<testing::PrefillCase> cases;
  for (const testing::PrefillCase& c : testing::PrefillCases({32, 64, 128})) {
    if (c.name.starts_with("LongPrompt") || c.name.starts_with("RareStrongGates")) {
      cases.push_back(c);
    }
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Cases, PrefillSm90UnboundedTest, ::testing::ValuesIn(UnboundedCases()),
                         testing::CaseName);

// Three passes over more work tiles than the device has multiprocessors, each with the counter at
// zero: rings that wrap, blocks that take several work tiles, and the same bits every time.
TEST(PrefillSm90Test, RepeatsItself) {
  if (!HasPrefillSm90()) GTEST_SKIP() << "no code for sm_90a, or no such device";
  testing::CacheOptions options;
  options.q_heads = options.kv_heads = 20;
  options.gate_means = {1, 9};
  options.sequences = {{2000, 2000, -10, 0}, {300, 200, -10, 1}, {1100, 1100, -10, 2}};
  for (const int head_dim : {32, 64, 128}) {
    options.head_dim = head_dim;
    testing::DeviceCache cache(options);
    std::vector<uint16_t> first;
    for (int pass = 0; pass < 3; ++pass) {
      cache.ResetOutputs();
      ASSERT_EQ(PrefillSm90(cache.batch(), cache.params(), cache.kv(), cache.schedule(),
                            cache.num_tiles(), nullptr),
                cudaSuccess);
      const std::vector<uint16_t> out = cache.out_array().ToHost();
      if (pass == 0) first = out;
      ASSERT_EQ(out, first) << "head dim " << head_dim << " pass " << pass;
    }
    cache.CheckOutputs(testing::RowKind::kPrefill, testing::kBf16Rounding);
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, PrefillSm90Test,
                         ::testing::ValuesIn(testing::PrefillCases({32, 64, 128})),
                         testing::CaseName);

TEST(PrefillSm90Test, RefusesOtherHeadDims) {
  testing::CacheOptions options;
  options.head_dim = 48;
  options.sequences = {{70, 70, -10, 0}};
  const testing::DeviceCache cache(options);
  EXPECT_EQ(PrefillSm90(cache.batch(), cache.params(), cache.kv(), cache.schedule(), 1, nullptr),
            cudaErrorInvalidValue);
}

}  // namespace
}  // namespace fox::cuda
