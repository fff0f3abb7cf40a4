// VarlenPrefillSm90 against float64 attention, for every case of varlen_cases.h.
#include <gtest/gtest.h>

#include "kernels/cuda/attention/prefill/prefill.h"
#include "tests/kernels/cuda/attention/prefill/varlen_cases.h"

namespace fox::cuda {
namespace {

class VarlenPrefillSm90Test : public ::testing::TestWithParam<testing::VarlenPrefillCase> {
 protected:
  void SetUp() override {
    if (!HasVarlenPrefillSm90()) GTEST_SKIP() << "no code for sm_90a, or no such device";
  }
};

TEST_P(VarlenPrefillSm90Test, MatchesFloat64) {
  testing::ExpectVarlenPrefill(VarlenPrefillSm90, GetParam(), 0x1p-8);  // weights: bf16
}

INSTANTIATE_TEST_SUITE_P(Cases, VarlenPrefillSm90Test,
                         ::testing::ValuesIn(testing::VarlenPrefillCases()),
                         testing::VarlenCaseName);

TEST(VarlenPrefillSm90Test, RefusesOtherHeadDims) {
  VarlenAttentionParams params;
  params.batch = params.q_heads = params.kv_heads = 1;
  params.tokens = 70;
  params.head_dim = 48;
  VarlenState state;
  state.max_tiles = 1;
  EXPECT_EQ(VarlenPrefillSm90(params, state, nullptr), cudaErrorInvalidValue);
}

}  // namespace
}  // namespace fox::cuda
