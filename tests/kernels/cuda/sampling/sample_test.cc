// Sample and Score on the device against engine/request/sampler.h on the host: the same token, rank
// and alternatives for all logits and filters; in a captured graph too.
#include "kernels/cuda/sampling/sample.h"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <vector>

#include "engine/request/sampler.h"
#include "tests/kernels/cuda/sampling/sample_batch.h"

namespace fox::cuda {
namespace {

SampleBatch RandomBatch(size_t count, int32_t vocabulary, Random& random) {
  SampleBatch batch(count, vocabulary, static_cast<int32_t>(random() % 5));
  for (size_t row = 0; row < count; ++row) {
    const Logits kind = random() % 2 == 0
                            ? Logits::kNormal
                            : static_cast<Logits>(random() % static_cast<uint64_t>(Logits::kCount));
    batch.SetLogits(row, MakeLogits(kind, vocabulary, random));
    batch.rows[row] = MakeRow(vocabulary, random() % 9 == 0 ? -1 : SlotOf(row), random);
  }
  return batch;
}

// Compares the device's results with the host's samples.
void ExpectAsSampler(const SampleBatch& batch) {
  const std::vector<SampleRecord> sampled = batch.sampled.ToHost();
  std::vector<int32_t> tokens(static_cast<size_t>(kMaxSlots), kPoisoned);
  Sampler sampler(batch.vocabulary);
  for (size_t row = 0; row < batch.rows.size(); ++row) {
    const SampleRow& how = batch.rows[row];
    const SampleRecord& got = sampled[row];
    SCOPED_TRACE(::testing::Message()
                 << "row " << row << " vocabulary " << batch.vocabulary << " temperature "
                 << how.temperature << " top_k " << how.top_k << " top_p " << how.top_p << " min_p "
                 << how.min_p << " logprobs " << how.logprobs);
    if (how.slot < 0) {
      EXPECT_EQ(got.id, kPoisoned) << "padding was sampled for";
      continue;
    }
    const auto want = sampler.Sample(batch.row_logits(row), ToSampling(how), {}, {}, how.position);
    tokens[static_cast<size_t>(how.slot)] = got.id;
    ExpectSample(got, want, how);
  }
  EXPECT_EQ(batch.sampled_tokens.ToHost(), tokens);
}

class SampleTest : public ::testing::TestWithParam<int32_t> {};

TEST_P(SampleTest, SamplesWhatTheSamplerSamples) {
  const int32_t vocabulary = GetParam();
  Random random(static_cast<uint64_t>(vocabulary));
  for (const size_t count : {1, 3, 32, 48, 100, 200}) {  // every number of blocks a row
    SCOPED_TRACE(::testing::Message() << count << " rows");
    SampleBatch batch = RandomBatch(count, vocabulary, random);
    batch.Upload();
    ASSERT_EQ(Sample(batch.params(), nullptr), cudaSuccess);
    ExpectAsSampler(batch);
  }
}

// The noise is drawn before the logits are there.
TEST_P(SampleTest, SamplesWithoutFilters) {
  const int32_t vocabulary = GetParam();
  Random random(static_cast<uint64_t>(vocabulary) + 2);
  for (const size_t count : {1, 16, 32, 48, 100, 200}) {  // every number of blocks a row
    SCOPED_TRACE(::testing::Message() << count << " rows");
    SampleBatch batch = RandomBatch(count, vocabulary, random);
    for (SampleRow& row : batch.rows) {
      row = SampleRow{.slot = row.slot,
                      .temperature = OneOf<float>(random, {1, 1, 0.7f, 100, 1e-45f}),
                      .seed = row.seed,
                      .position = row.position};
    }
    batch.Upload();
    ASSERT_EQ(Sample(batch.params(), nullptr), cudaSuccess);
    ExpectAsSampler(batch);
  }
}

// Every token is a target somewhere: the best, one of its equals, and any other.
TEST_P(SampleTest, ScoresWhatTheSamplerScores) {
  const int32_t vocabulary = GetParam();
  Random random(static_cast<uint64_t>(vocabulary) + 1);
  for (const size_t count : {1, 3, 32, 48, 128, 300}) {
    SCOPED_TRACE(::testing::Message() << count << " rows");
    SampleBatch batch = RandomBatch(count, vocabulary, random);
    batch.Upload();
    std::vector<ScoreRow> rows(count);
    for (ScoreRow& row : rows) {
      row.target = static_cast<int32_t>(random() % static_cast<uint64_t>(vocabulary));
      row.logprobs = OneOf<int32_t>(random, {0, 1, 5, kMaxSampledLogprobs});
    }
    const DeviceArray<ScoreRow> device_rows(rows);
    const SampleParams params = batch.params();
    ASSERT_EQ(Score({params.logits, device_rows.data(), params.sampled}, nullptr), cudaSuccess);
    const std::vector<SampleRecord> scored = batch.sampled.ToHost();
    Sampler sampler(vocabulary);
    for (size_t row = 0; row < count; ++row) {
      SCOPED_TRACE(::testing::Message() << "row " << row << " target " << rows[row].target
                                        << " logprobs " << rows[row].logprobs);
      SamplingParams sampling;
      sampling.prompt_logprobs = rows[row].logprobs;
      const absl::StatusOr<SampledToken> want =
          sampler.ScorePrompt(batch.row_logits(row), sampling, rows[row].target);
      EXPECT_EQ(scored[row].id, rows[row].target);
      EXPECT_EQ(scored[row].status, want.ok() ? SampleStatus::kSampled : SampleStatus::kNotFinite);
      if (want.ok()) ExpectLogprobs(scored[row], *want);
    }
    // Scoring changes no logits and samples nothing.
    const std::vector<float> after = batch.device_logits.ToHost();
    EXPECT_EQ(std::memcmp(after.data(), batch.logits.data(), after.size() * sizeof(float)), 0);
    for (const int32_t token : batch.sampled_tokens.ToHost()) ASSERT_EQ(token, kPoisoned);
  }
}

INSTANTIATE_TEST_SUITE_P(Vocabularies, SampleTest,
                         ::testing::Values(1, 2, 7, 256, 1000, 4097, 32000, 49152, 50277));

TEST(SampleTest, NoRowsIsNoWork) {
  SampleParams params;
  params.logits.cols = 7;
  EXPECT_EQ(Sample(params, nullptr), cudaSuccess);
}

TEST(SampleTest, AGraphSamplesForTheRowsOfTheMoment) {
  constexpr int32_t kVocabulary = 50277;
  constexpr size_t kRows = 8;
  Random random(9);
  SampleBatch batch = RandomBatch(kRows, kVocabulary, random);
  batch.Upload();
  cudaStream_t stream = nullptr;
  ASSERT_EQ(cudaStreamCreate(&stream), cudaSuccess);
  ASSERT_EQ(Sample(batch.params(), stream), cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  // Twice: the second launch may overlap the first one's end.
  ASSERT_EQ(Sample(batch.params(), stream), cudaSuccess);
  ASSERT_EQ(Sample(batch.params(), stream), cudaSuccess);
  ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
  ASSERT_EQ(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
  for (int replay = 0; replay < 4; ++replay) {
    for (size_t row = 0; row < kRows; ++row) {
      batch.SetLogits(row, MakeLogits(Logits::kNormal, kVocabulary, random));
      batch.rows[row] =
          MakeRow(kVocabulary, row % 4 == 3 ? -1 : SlotOf(row + random() % 2 * 64), random);
    }
    batch.Upload();
    ASSERT_EQ(cudaGraphLaunch(exec, stream), cudaSuccess);
    ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    ExpectAsSampler(batch);
  }
  EXPECT_EQ(cudaGraphExecDestroy(exec), cudaSuccess);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
}

}  // namespace
}  // namespace fox::cuda
