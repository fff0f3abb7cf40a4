// BackwardSm80 against float64 gradients, for every case of backward_cases.h.
#include <gtest/gtest.h>

#include "kernels/cuda/attention/backward/backward.h"
#include "tests/kernels/cuda/attention/backward/backward_cases.h"

namespace fox::cuda {
namespace {

class BackwardSm80Test : public ::testing::TestWithParam<testing::BackwardCase> {};

TEST_P(BackwardSm80Test, MatchesFloat64) { testing::ExpectBackward(BackwardSm80, GetParam()); }

INSTANTIATE_TEST_SUITE_P(Cases, BackwardSm80Test, ::testing::ValuesIn(testing::BackwardCases()),
                         testing::BackwardCaseName);

class BackwardSm80HeadDimTest : public ::testing::TestWithParam<int> {};

TEST_P(BackwardSm80HeadDimTest, IsDeterministic) {
  testing::ExpectDeterminism(BackwardSm80, GetParam());
}

TEST_P(BackwardSm80HeadDimTest, KeepsSequencesApart) {
  testing::ExpectIndependentSequences(BackwardSm80, GetParam());
}

INSTANTIATE_TEST_SUITE_P(HeadDims, BackwardSm80HeadDimTest, ::testing::Values(32, 64, 128));

TEST(BackwardSm80Test, RefusesOtherHeadDims) {
  VarlenAttentionParams params;
  params.batch = params.q_heads = params.kv_heads = 1;
  params.tokens = 70;
  params.head_dim = 48;
  VarlenState state;
  state.max_tiles = 1;
  EXPECT_EQ(BackwardSm80(params, state, {}, nullptr), cudaErrorInvalidValue);
}

}  // namespace
}  // namespace fox::cuda
