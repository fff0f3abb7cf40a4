// The cases that every prefill attention kernel must pass, with the kernel as a parameter: modes,
// head dims, grouped heads, ragged batches with decoding and padded sequences among them, chunks
// that begin anywhere, gates from none to annihilating, outputs as they are, normed, gated, both.
// See device_cache.h for what is compared.
//
//   INSTANTIATE_TEST_SUITE_P(Cases, MyTest, ::testing::ValuesIn(PrefillCases({64, 128})),
//   CaseName); TEST_P(MyTest, MatchesFloat64) { ExpectPrefill(MyKernel, GetParam(), 0); }
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <ostream>
#include <string>
#include <vector>

#include "kernels/attention_params.h"
#include "kernels/cuda/runtime/step_schedule.h"
#include "tests/kernels/cuda/device_cache.h"

namespace fox::cuda::testing {

using PrefillKernel = cudaError_t (*)(const BatchView& batch, const AttentionParams& params,
                                      const PagedKv& kv, const StepSchedule& schedule,
                                      int max_tiles, cudaStream_t stream);

struct PrefillCase {
  std::string name;
  CacheOptions options;
};
inline std::ostream& operator<<(std::ostream& out, const PrefillCase& c) { return out << c.name; }
inline std::string CaseName(const ::testing::TestParamInfo<PrefillCase>& info) {
  return info.param.name;
}

std::vector<PrefillCase> PrefillCases(const std::vector<int>& head_dims);

// Outputs, log sums and counters against the oracle; then once more with spare tiles and without
// lse and counters, which must give the same bits. `sum_rounding`: of the sum of a row's weights,
// relative.
void ExpectPrefill(PrefillKernel kernel, const PrefillCase& c, double sum_rounding);

}  // namespace fox::cuda::testing
