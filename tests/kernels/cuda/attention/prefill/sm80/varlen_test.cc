// VarlenPrefillSm80 against float64 attention, for every case of varlen_cases.h.
#include <gtest/gtest.h>

#include "kernels/cuda/attention/prefill/prefill.h"
#include "tests/kernels/cuda/attention/prefill/varlen_cases.h"

namespace fox::cuda {
namespace {

class VarlenPrefillSm80Test : public ::testing::TestWithParam<testing::VarlenPrefillCase> {};

TEST_P(VarlenPrefillSm80Test, MatchesFloat64) {
  testing::ExpectVarlenPrefill(VarlenPrefillSm80, GetParam(), 0);
}

INSTANTIATE_TEST_SUITE_P(Cases, VarlenPrefillSm80Test,
                         ::testing::ValuesIn(testing::VarlenPrefillCases()),
                         testing::VarlenCaseName);

TEST(VarlenPrefillSm80Test, RefusesOtherHeadDims) {
  VarlenAttentionParams params;
  params.batch = params.q_heads = params.kv_heads = 1;
  params.tokens = 70;
  params.head_dim = 48;
  VarlenState state;
  state.max_tiles = 1;
  EXPECT_EQ(VarlenPrefillSm80(params, state, nullptr), cudaErrorInvalidValue);
}

}  // namespace
}  // namespace fox::cuda
