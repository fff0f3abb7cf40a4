// CpuOps::Score against log-softmax in float64 and a sort of all tokens.
#include "kernels/cpu/score.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "kernels/cpu/cpu_ops.h"

namespace fox {
namespace {

struct Scored {
  std::vector<SampleRecord> records;
  std::vector<ScoreRow> rows;
};

// Scores all rows of [rows, vocabulary] logits; their targets and counts are drawn.
template <typename T>
Scored ScoreAll(std::vector<T>& logits, int32_t vocabulary, uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto count = static_cast<int64_t>(logits.size()) / vocabulary;
  Scored scored;
  for (int64_t i = 0; i < count; ++i) {
    scored.rows.push_back({static_cast<int32_t>(random() % static_cast<uint64_t>(vocabulary)),
                           static_cast<int32_t>(random() % (kMaxSampledLogprobs + 1))});
  }
  scored.records.resize(static_cast<size_t>(count));
  CpuOps ops({DType::kF32, true, 2});
  const DType dtype = sizeof(T) == sizeof(float) ? DType::kF32 : DType::kF64;
  ops.Score({{logits.data(), dtype, count, vocabulary, vocabulary},
             scored.rows.data(),
             scored.records.data()},
            nullptr);
  return scored;
}

// Ids, the likeliest first, of equals the lower one.
std::vector<int32_t> Sorted(const float* row, int32_t vocabulary) {
  std::vector<int32_t> ids(static_cast<size_t>(vocabulary));
  std::iota(ids.begin(), ids.end(), 0);
  std::stable_sort(ids.begin(), ids.end(), [&](int32_t a, int32_t b) { return row[a] > row[b]; });
  return ids;
}

// Each exponential has a relative error of 2 units in the last place, 2^-22. A sum of exponentials
// has no larger one, so the logarithm of the sum is off by 2^-22. The result is rounded to float32.
void ExpectRecord(const SampleRecord& got, const ScoreRow& how, const float* row,
                  int32_t vocabulary) {
  const std::vector<int32_t> ids = Sorted(row, vocabulary);
  const double largest = static_cast<double>(row[ids.front()]);
  double sum = 0;
  for (int32_t i = 0; i < vocabulary; ++i) sum += std::exp(static_cast<double>(row[i]) - largest);
  const auto expect = [&](float logprob, int32_t id) {
    const double want = static_cast<double>(row[id]) - largest - std::log(sum);
    EXPECT_NEAR(logprob, want, 0x1p-21 + std::abs(want) * 0x1p-23) << "id " << id;
  };
  EXPECT_EQ(got.id, how.target);
  ASSERT_EQ(got.status, SampleStatus::kSampled);
  EXPECT_EQ(got.rank, std::find(ids.begin(), ids.end(), how.target) - ids.begin() + 1);
  expect(got.logprob, how.target);
  for (int32_t i = 0; i < std::min(how.logprobs, vocabulary); ++i) {
    const auto place = static_cast<size_t>(i);
    EXPECT_EQ(got.top_ids[i], ids[place]) << "alternative " << i;
    expect(got.top_logprobs[i], ids[place]);
  }
}

TEST(ScoreTest, EqualsTheDefinition) {
  for (const int32_t vocabulary : {1, 2, 7, 63, 64, 65, 1023, 1024, 1025, 4097}) {
    for (const float scale : {1.0f, 10.0f, 0.25f}) {  // the last one has many equals
      SCOPED_TRACE(::testing::Message() << vocabulary << " tokens, scale " << scale);
      std::mt19937_64 random(static_cast<uint64_t>(vocabulary));
      std::normal_distribution<float> normal(0, 2);
      std::vector<float> logits(static_cast<size_t>(vocabulary) * 9);
      for (float& x : logits) {
        x = scale < 1 ? scale * std::round(normal(random)) : scale * normal(random);
      }
      const Scored scored = ScoreAll(logits, vocabulary, 5);
      std::vector<double> wide(logits.begin(), logits.end());
      const Scored from_wide = ScoreAll(wide, vocabulary, 5);
      for (size_t row = 0; row < scored.rows.size(); ++row) {
        SCOPED_TRACE(row);
        ExpectRecord(scored.records[row], scored.rows[row],
                     logits.data() + row * static_cast<size_t>(vocabulary), vocabulary);
        EXPECT_EQ(from_wide.records[row].logprob, scored.records[row].logprob);
        EXPECT_EQ(from_wide.records[row].rank, scored.records[row].rank);
      }
    }
  }
}

TEST(ScoreTest, ARowThatIsNotFiniteIsAnErrorOfItsOwn) {
  for (const float bad : {std::nanf(""), std::numeric_limits<float>::infinity(),
                          -std::numeric_limits<float>::infinity()}) {
    SCOPED_TRACE(bad);
    std::vector<float> logits(3 * 100, 0.5f);
    logits[150] = bad;
    const Scored scored = ScoreAll(logits, 100, 1);
    EXPECT_EQ(scored.records[0].status, SampleStatus::kSampled);
    EXPECT_EQ(scored.records[1].status, SampleStatus::kNotFinite);
    EXPECT_EQ(scored.records[2].status, SampleStatus::kSampled);
  }
}

}  // namespace
}  // namespace fox
