// Score: log-probabilities of a prompt's tokens on the CPU.
#include "kernels/cpu/score.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "kernels/core/check.h"
#include "kernels/core/sampling_arithmetic.h"
#include "kernels/cpu/cpu_ops.h"

namespace fox {
RowScan ScanRow(const float* row, int32_t size) {
  constexpr int32_t kBlock = 1024;
  constexpr int32_t kExponent = 0x7f800000;
  int32_t largest = std::numeric_limits<int32_t>::min();
  int32_t best_block = 0;
  int32_t not_finite = 0;
  for (int32_t begin = 0; begin < size; begin += kBlock) {
    const int32_t end = std::min(size, begin + kBlock);
    int32_t block_largest = std::numeric_limits<int32_t>::min();
    for (int32_t i = begin; i < end; ++i) {
      const auto bits = BitCast<int32_t>(row[i]);
      const int32_t order = OrderedInt(row[i]);
      block_largest = order > block_largest ? order : block_largest;
      not_finite |= (bits & kExponent) == kExponent ? 1 : 0;
    }
    if (block_largest > largest || begin == 0) {
      largest = block_largest;
      best_block = begin;
    }
  }
  RowScan scan;
  scan.finite = not_finite == 0;
  scan.best = best_block;
  for (int32_t i = best_block; i < size; ++i) {
    if (OrderedInt(row[i]) == largest) {
      scan.best = i;
      break;
    }
  }
  return scan;
}

double LogSumExp(const float* row, int32_t size, float largest) {
  constexpr int32_t kBlock = 1024, kLanes = 8;
  float weights[kBlock];
  double lanes[kLanes] = {};
  double sum = 0.0;
  for (int32_t begin = 0; begin < size; begin += kBlock) {
    const int32_t count = std::min(size - begin, kBlock);
    for (int32_t i = 0; i < count; ++i) weights[i] = Weight(row[begin + i], largest, 1.0);
    int32_t i = 0;
    for (; i + kLanes <= count; i += kLanes) {
      for (int32_t lane = 0; lane < kLanes; ++lane) {
        lanes[lane] += static_cast<double>(weights[i + lane]);
      }
    }
    for (; i < count; ++i) sum += static_cast<double>(weights[i]);
  }
  for (const double lane : lanes) sum += lane;
  return std::log(sum) + static_cast<double>(largest);
}

int32_t RankOf(const float* row, int32_t size, int32_t id) {
  const float x = row[id];
  int32_t before = 0;
  for (int32_t i = 0; i < id; ++i) before += row[i] >= x ? 1 : 0;
  for (int32_t i = id + 1; i < size; ++i) before += row[i] > x ? 1 : 0;
  return before + 1;
}

std::vector<uint64_t> BestCandidates(const float* row, int32_t size, int32_t count) {
  FOX_CHECK(0 <= count && count <= size);
  const auto wanted = static_cast<size_t>(count);
  std::vector<uint64_t> best;  // descending
  for (int32_t id = 0; id < size && wanted > 0; ++id) {
    const uint64_t key = CandidateKey(row[id], id);
    if (best.size() == wanted) {
      if (key < best.back()) continue;
      best.pop_back();
    }
    best.insert(std::upper_bound(best.begin(), best.end(), key, std::greater<>()), key);
  }
  return best;
}

SampleRecord ScoreOf(const float* row, int32_t size, const ScoreRow& how) {
  FOX_CHECK(how.target >= 0 && how.target < size && how.logprobs <= kMaxSampledLogprobs);
  SampleRecord record;
  record.id = how.target;
  const RowScan scan = ScanRow(row, size);
  if (!scan.finite) {
    record.status = SampleStatus::kNotFinite;
    return record;
  }
  const double log_sum = LogSumExp(row, size, row[scan.best]);
  const auto logprob = [&](int32_t id) {
    return static_cast<float>(static_cast<double>(row[id]) - log_sum);
  };
  record.logprob = logprob(how.target);
  record.rank = RankOf(row, size, how.target);
  int place = 0;
  for (const uint64_t key : BestCandidates(row, size, std::clamp(how.logprobs, 0, size))) {
    record.top_ids[place] = CandidateId(key);
    record.top_logprobs[place++] = logprob(CandidateId(key));
  }
  return record;
}

void CpuOps::Score(const ScoreParams& params, Stream) {
  const MatrixView& logits = params.logits;
  FOX_CHECK(logits.cols > 0 && logits.cols <= INT32_MAX);
  const auto size = static_cast<int32_t>(logits.cols);
  pool_.ForEach(logits.rows, logits.rows * logits.cols > kParallelElements, [&](int64_t i) {
    if (logits.dtype == DType::kF32) {
      params.scores[i] = ScoreOf(logits.Row<float>(i), size, params.rows[i]);
      return;
    }
    const double* row = logits.Row<double>(i);  // the host samples from float32, too
    params.scores[i] = ScoreOf(std::vector<float>(row, row + size).data(), size, params.rows[i]);
  });
}

}  // namespace fox
