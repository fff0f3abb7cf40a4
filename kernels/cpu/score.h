// Log-probabilities of tokens in a row of logits, for CpuOps::Score and for the host's Sampler.
// Scans are plain loops over fixed blocks, which compilers vectorise; exponentials are float32,
// sums float64, in an order that does not depend on the caller. Ties go to the lower id.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/core/philox.h"
#include "kernels/interface/sampling_params.h"

namespace fox {

// Floats as integers of the same order; -0 counts as 0.
inline int32_t OrderedInt(float x) {
  const auto bits = BitCast<int32_t>(x + 0.0f);
  return bits ^ ((bits >> 31) & 0x7fffffff);
}

// Sort key of a candidate: the larger logit, then the lower id.
inline uint64_t CandidateKey(float x, int32_t id) {
  const uint32_t order = static_cast<uint32_t>(OrderedInt(x)) ^ 0x80000000u;
  return (uint64_t{order} << 32) | (0xffffffffu - static_cast<uint32_t>(id));
}
inline int32_t CandidateId(uint64_t key) {
  return static_cast<int32_t>(0xffffffffu - static_cast<uint32_t>(key));
}

struct RowScan {
  int32_t best = 0;  // the lowest id of the largest value
  bool finite = true;
};
RowScan ScanRow(const float* row, int32_t size);

// log of the sum of exp over row [size], whose largest value is `largest`. Masked values are
// -infinity.
double LogSumExp(const float* row, int32_t size, float largest);

// 1 for the likeliest token.
int32_t RankOf(const float* row, int32_t size, int32_t id);

// Candidate keys of the `count` likeliest tokens, the best first. REQUIRES: count <= size.
std::vector<uint64_t> BestCandidates(const float* row, int32_t size, int32_t count);

// The record of Ops::Score for one row. REQUIRES: the target is in [0, size), and no more than
// kMaxSampledLogprobs are asked for.
SampleRecord ScoreOf(const float* row, int32_t size, const ScoreRow& how);

}  // namespace fox
