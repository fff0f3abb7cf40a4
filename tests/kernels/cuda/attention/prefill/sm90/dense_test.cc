// DensePrefillSm90 against float64 attention, for every case of dense_cases.h.
#include <gtest/gtest.h>

#include "kernels/cuda/attention/prefill/prefill.h"
#include "tests/kernels/cuda/attention/prefill/dense_cases.h"

namespace fox::cuda {
namespace {

class DensePrefillSm90Test : public ::testing::TestWithParam<testing::DensePrefillCase> {
 protected:
  void SetUp() override {
    if (!HasDensePrefillSm90()) GTEST_SKIP() << "no code for sm_90a, or no such device";
  }
};

TEST_P(DensePrefillSm90Test, MatchesFloat64) {
  testing::ExpectDensePrefill(DensePrefillSm90, GetParam(), 0x1p-8);  // weights: bf16
}

INSTANTIATE_TEST_SUITE_P(Cases, DensePrefillSm90Test,
                         ::testing::ValuesIn(testing::DensePrefillCases()), testing::DenseCaseName);

TEST(DensePrefillSm90Test, RefusesOtherHeadDims) {
  DenseAttentionParams params;
  params.batch = params.q_heads = params.kv_heads = 1;
  params.tokens = 70;
  params.head_dim = 48;
  DenseState state;
  state.max_tiles = 1;
  EXPECT_EQ(DensePrefillSm90(params, state, nullptr), cudaErrorInvalidValue);
}

}  // namespace
}  // namespace fox::cuda
