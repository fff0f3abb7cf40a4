// BackwardSm90 against float64 gradients, for every case of backward_cases.h.
#include <gtest/gtest.h>

#include "kernels/cuda/attention/backward/backward.h"
#include "tests/kernels/cuda/attention/backward/backward_cases.h"

namespace fox::cuda {
namespace {

class BackwardSm90Test : public ::testing::TestWithParam<testing::BackwardCase> {
 protected:
  void SetUp() override {
    if (!HasBackwardSm90()) GTEST_SKIP() << "no code for sm_90a, or no such device";
  }
};

TEST_P(BackwardSm90Test, MatchesFloat64) { testing::ExpectBackward(BackwardSm90, GetParam()); }

INSTANTIATE_TEST_SUITE_P(Cases, BackwardSm90Test, ::testing::ValuesIn(testing::BackwardCases()),
                         testing::BackwardCaseName);

class BackwardSm90HeadDimTest : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    if (!HasBackwardSm90()) GTEST_SKIP() << "no code for sm_90a, or no such device";
  }
};

TEST_P(BackwardSm90HeadDimTest, IsDeterministic) {
  testing::ExpectDeterminism(BackwardSm90, GetParam());
}

TEST_P(BackwardSm90HeadDimTest, KeepsSequencesApart) {
  testing::ExpectIndependentSequences(BackwardSm90, GetParam());
}

INSTANTIATE_TEST_SUITE_P(HeadDims, BackwardSm90HeadDimTest, ::testing::Values(32, 64, 128));

}  // namespace
}  // namespace fox::cuda
