// The cases that every prefill attention kernel must pass over arrays, with the kernel as a
// parameter: packed and batched sequences of all awkward lengths, layouts, grouped heads, modes of
// pruning, gates from none to annihilating.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <ostream>
#include <string>
#include <vector>

#include "kernels/cuda/attention/varlen/state.h"
#include "kernels/varlen_attention.h"
#include "tests/kernels/varlen_inputs.h"

namespace fox::cuda::testing {

using VarlenPrefillKernel = cudaError_t (*)(const VarlenAttentionParams& params,
                                            const VarlenState& state, cudaStream_t stream);

struct VarlenPrefillCase {
  std::string name;
  fox::testing::VarlenCase shape;
  AcpMode acp = AcpMode::kOff;
  double scale = 0;           // 0: 1 / sqrt(head_dim)
  int strong_gate_every = 0;  // so many tokens; its log gate is -100. 0: none
  bool random_pages = false;  // first pages of any value that the contract allows
};
inline std::ostream& operator<<(std::ostream& out, const VarlenPrefillCase& c) {
  return out << c.name;
}
inline std::string VarlenCaseName(const ::testing::TestParamInfo<VarlenPrefillCase>& info) {
  return info.param.name;
}

// Of head dims 32, 64 and 128.
std::vector<VarlenPrefillCase> VarlenPrefillCases();

// Outputs and log sums against float64; what lies outside of sequences is NaN before and must not
// have been touched. Twice, with the same bits. `sum_rounding`: of the sum of a row's weights,
// relative.
void ExpectVarlenPrefill(VarlenPrefillKernel kernel, const VarlenPrefillCase& c,
                         double sum_rounding);

}  // namespace fox::cuda::testing
