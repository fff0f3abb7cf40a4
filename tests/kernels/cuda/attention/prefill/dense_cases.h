// The cases that every prefill attention kernel must pass over dense arrays, with the kernel as a
// parameter: packed and batched sequences of all awkward lengths, layouts, grouped heads, modes of
// pruning, gates from none to annihilating.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <ostream>
#include <string>
#include <vector>

#include "kernels/cuda/attention/dense/state.h"
#include "kernels/dense_attention.h"
#include "tests/kernels/dense_inputs.h"

namespace fox::cuda::testing {

using DensePrefillKernel = cudaError_t (*)(const DenseAttentionParams& params,
                                           const DenseState& state, cudaStream_t stream);

struct DensePrefillCase {
  std::string name;
  fox::testing::DenseCase shape;
  AcpMode acp = AcpMode::kOff;
  double scale = 0;           // 0: 1 / sqrt(head_dim)
  int strong_gate_every = 0;  // so many tokens; its log gate is -100. 0: none
  bool random_pages = false;  // first pages of any value that the contract allows
};
inline std::ostream& operator<<(std::ostream& out, const DensePrefillCase& c) {
  return out << c.name;
}
inline std::string DenseCaseName(const ::testing::TestParamInfo<DensePrefillCase>& info) {
  return info.param.name;
}

// Of head dims 32, 64 and 128.
std::vector<DensePrefillCase> DensePrefillCases();

// Outputs and log sums against float64; what lies outside of sequences is NaN before and must not
// have been touched. Twice, with the same bits. `sum_rounding`: of the sum of a row's weights,
// relative.
void ExpectDensePrefill(DensePrefillKernel kernel, const DensePrefillCase& c, double sum_rounding);

}  // namespace fox::cuda::testing
