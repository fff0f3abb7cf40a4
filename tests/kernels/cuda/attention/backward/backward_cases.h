// The cases that every backward kernel of varlen attention must pass, with the kernel as a
// parameter: packed and batched sequences of all awkward lengths, layouts, grouped heads, pruned
// rows, gates from none to annihilating, keys that are all the same. Out and lse are the oracle's,
// rounded, so that no forward kernel is needed.
//
//   INSTANTIATE_TEST_SUITE_P(Cases, MyTest, ::testing::ValuesIn(BackwardCases()),
//   BackwardCaseName); TEST_P(MyTest, MatchesFloat64) { ExpectBackward(MyKernel, GetParam()); }
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

using BackwardKernel = cudaError_t (*)(const VarlenAttentionParams& params,
                                       const VarlenState& state, const VarlenGradients& gradients,
                                       cudaStream_t stream);

struct BackwardCase {
  std::string name;
  fox::testing::VarlenCase shape;
  AcpMode acp = AcpMode::kOff;
  // Rows of head h see the pages of their own tile and views[h % size] before; empty: what acp
  // says. What is cut off matters, unlike what a bound prunes.
  std::vector<int> views = {};
  double strong_gate_rate = 0;  // of tokens whose log gate is in [-40, -20]
  bool equal_keys = false;

  bool cancels() const { return equal_keys || strong_gate_rate > 0; }
};
inline std::ostream& operator<<(std::ostream& out, const BackwardCase& c) { return out << c.name; }
inline std::string BackwardCaseName(const ::testing::TestParamInfo<BackwardCase>& info) {
  return info.param.name;
}

// Of head dims 32, 64 and 128.
std::vector<BackwardCase> BackwardCases();

// All gradients against float64, in both modes, and under AcpMode::kPaper against those of
// attention that was not pruned; that the sums of dS over rows and over columns are of the same
// numbers; that the kernel writes nothing but what is its own. Tokens of no sequence are NaN.
void ExpectBackward(BackwardKernel kernel, const BackwardCase& c);

// Deterministic runs give the same bits, others the same but for the order of sums in float32.
void ExpectDeterminism(BackwardKernel kernel, int head_dim);

// A sequence has the gradients that it has alone.
void ExpectIndependentSequences(BackwardKernel kernel, int head_dim);

}  // namespace fox::cuda::testing
