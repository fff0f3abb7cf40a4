// DensePrefillSm80 against float64 attention, for every case of dense_cases.h.
#include <gtest/gtest.h>

#include "kernels/cuda/attention/prefill/prefill.h"
#include "tests/kernels/cuda/attention/prefill/dense_cases.h"

namespace fox::cuda {
namespace {

class DensePrefillSm80Test : public ::testing::TestWithParam<testing::DensePrefillCase> {};

TEST_P(DensePrefillSm80Test, MatchesFloat64) {
  testing::ExpectDensePrefill(DensePrefillSm80, GetParam(), 0);
}

INSTANTIATE_TEST_SUITE_P(Cases, DensePrefillSm80Test,
                         ::testing::ValuesIn(testing::DensePrefillCases()), testing::DenseCaseName);

TEST(DensePrefillSm80Test, RefusesOtherHeadDims) {
  DenseAttentionParams params;
  params.batch = params.q_heads = params.kv_heads = 1;
  params.tokens = 70;
  params.head_dim = 48;
  DenseState state;
  state.max_tiles = 1;
  EXPECT_EQ(DensePrefillSm80(params, state, nullptr), cudaErrorInvalidValue);
}

}  // namespace
}  // namespace fox::cuda
