// Draw on the device against engine/sampler.h on the host: the same token, rank and alternatives,
// whatever the logits and filters; in a captured graph too.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "engine/philox.h"
#include "engine/sampler.h"
#include "kernels/cuda/device/philox.h"
#include "kernels/cuda/draw.h"
#include "tests/kernels/cuda/device_array.h"

namespace fox::cuda {
namespace {

using testing::DeviceArray;
using Random = std::mt19937_64;

constexpr int32_t kPoisoned = -1;
constexpr int32_t kMaxSlots = 131;  // a prime above every number of rows

template <typename T>
T OneOf(Random& random, const std::vector<T>& choices) {
  return choices[random() % choices.size()];
}

int32_t SlotOf(size_t row) { return static_cast<int32_t>((row * 7 + 3) % kMaxSlots); }

enum class Logits { kNormal, kWide, kTied, kEqual, kZeros, kExtreme, kPeaked, kTiny, kBad, kCount };

std::vector<float> MakeLogits(Logits kind, int32_t vocabulary, Random& random) {
  std::normal_distribution<float> normal(0.0f, 2.0f);
  std::vector<float> row(static_cast<size_t>(vocabulary));
  for (float& x : row) {
    x = normal(random);
    if (kind == Logits::kWide) x *= 10;
    if (kind == Logits::kTied) x = std::round(x * 2) / 2;
    if (kind == Logits::kEqual) x = -3.25f;
    if (kind == Logits::kZeros) x = x > 2 ? -1.0f : (x > 0 ? 0.0f : -0.0f);
    if (kind == Logits::kExtreme) x = std::clamp(x * 1e38f, -3.4e38f, 3.4e38f);
    if (kind == Logits::kTiny) x *= 1e-42f;
  }
  const size_t at = random() % row.size();
  if (kind == Logits::kPeaked) row[at] = 30.0f;
  if (kind == Logits::kBad) {
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    row[at] = OneOf<float>(random, {kInfinity, -kInfinity, std::nanf(""), -std::nanf("")});
  }
  return row;
}

// Half of the rows have one filter or none, the others any combination.
DrawRow MakeRow(int32_t vocabulary, int32_t slot, Random& random) {
  DrawRow how;
  how.slot = slot;
  how.temperature = OneOf<float>(random, {0, 1, 1, 0.7f, 2, 0.1f, 100, 1e-3f, 1e-45f});
  const uint64_t filters = random() % 2 == 0 ? uint64_t{1} << (random() % 4) : random() % 8;
  if (filters & 1) {
    how.top_k = OneOf<int32_t>(
        random, {1, 2, 20, 50, 127, 128, 129, 1000, vocabulary - 1, vocabulary, vocabulary + 1});
  }
  if (filters & 2) {
    how.top_p = OneOf<float>(random, {1e-9f, 0.1f, 0.5f, 0.9f, 0.95f, 0.99f, 0.999999f});
  }
  if (filters & 4) how.min_p = OneOf<float>(random, {1e-30f, 1e-3f, 0.02f, 0.1f, 0.5f, 1.0f});
  how.logprobs = OneOf<int32_t>(random, {-1, -1, 0, 1, 5, kMaxDrawnLogprobs});
  how.seed = random();
  how.position = random() % 3 == 0 ? random() : random() % 1000;
  return how;
}

// A batch on the device with rows `stride` apart and NaN between them.
struct Batch {
  Batch(size_t count, int32_t vocab, int32_t padding)
      : vocabulary(vocab),
        stride(vocab + padding),
        rows(count),
        logits(count * static_cast<size_t>(stride), std::numeric_limits<float>::quiet_NaN()),
        device_rows(count),
        device_logits(logits.size()),
        drawn(count),
        drawn_tokens(static_cast<size_t>(kMaxSlots)) {}

  const float* row_logits(size_t row) const {
    return logits.data() + row * static_cast<size_t>(stride);
  }
  void SetLogits(size_t row, const std::vector<float>& values) {
    std::copy(values.begin(), values.end(),
              logits.begin() + static_cast<std::ptrdiff_t>(row * static_cast<size_t>(stride)));
  }
  void Upload() {
    device_rows.CopyFrom(rows);
    device_logits.CopyFrom(logits);
    drawn.Fill(testing::kPoison);
    drawn_tokens.Fill(testing::kPoison);
  }
  DrawParams params() const {
    const MatrixView view{device_logits.data(), DType::kF32, static_cast<int64_t>(rows.size()),
                          vocabulary, stride};
    return {view, device_rows.data(), drawn.data(), drawn_tokens.data()};
  }

  int32_t vocabulary, stride;
  std::vector<DrawRow> rows;
  std::vector<float> logits;
  DeviceArray<DrawRow> device_rows;
  DeviceArray<float> device_logits;
  DeviceArray<DrawnToken> drawn;
  DeviceArray<int32_t> drawn_tokens;
};

Batch RandomBatch(size_t count, int32_t vocabulary, Random& random) {
  Batch batch(count, vocabulary, static_cast<int32_t>(random() % 5));
  for (size_t row = 0; row < count; ++row) {
    const Logits kind = random() % 2 == 0
                            ? Logits::kNormal
                            : static_cast<Logits>(random() % static_cast<uint64_t>(Logits::kCount));
    batch.SetLogits(row, MakeLogits(kind, vocabulary, random));
    batch.rows[row] = MakeRow(vocabulary, random() % 9 == 0 ? -1 : SlotOf(row), random);
  }
  return batch;
}

SamplingParams ToSampling(const DrawRow& how) {
  SamplingParams params;
  params.temperature = how.temperature;
  params.top_p = how.top_p;
  params.min_p = how.min_p;
  params.top_k = how.top_k;
  params.logprobs = how.logprobs;
  params.seed = how.seed;
  return params;
}

// The candidates that pass the filters, in the order of the draw, by plain float64 arithmetic.
std::vector<size_t> Kept(const std::vector<double>& weight, const float* logits,
                         const DrawRow& how) {
  std::vector<size_t> kept;
  for (size_t id = 0; id < weight.size(); ++id) {
    if (weight[id] >= static_cast<double>(how.min_p)) kept.push_back(id);
  }
  const bool trims = how.top_k > 0 && static_cast<size_t>(how.top_k) < kept.size();
  if (!trims && how.top_p >= 1.0f) return kept;
  std::stable_sort(kept.begin(), kept.end(),
                   [&](size_t a, size_t b) { return logits[a] > logits[b]; });
  if (trims) kept.resize(static_cast<size_t>(how.top_k));
  if (how.top_p < 1.0f) {
    double total = 0, sum = 0;
    for (const size_t id : kept) total += weight[id];
    size_t count = 0;
    while (count < kept.size() && sum < static_cast<double>(how.top_p) * total) {
      sum += weight[kept[count++]];
    }
    kept.resize(count);
  }
  return kept;
}

// Whether two tokens are neighbours and the drawn point is where they meet, within 1e-5.
bool AtBoundary(const float* logits, int32_t vocabulary, const DrawRow& how, int32_t a, int32_t b) {
  if (how.temperature <= 0) return false;
  const double largest = *std::max_element(logits, logits + vocabulary);
  std::vector<double> weight;
  for (int32_t id = 0; id < vocabulary; ++id) {
    weight.push_back(std::exp((logits[id] - largest) / static_cast<double>(how.temperature)));
  }
  const std::vector<size_t> kept = Kept(weight, logits, how);
  double total = 0, boundary = 0;
  for (const size_t id : kept) total += weight[id];
  const double target = PhiloxUniform(how.seed, how.position) * total;
  for (size_t i = 0; i + 1 < kept.size(); ++i) {
    boundary += weight[kept[i]];
    const int32_t here = static_cast<int32_t>(kept[i]), next = static_cast<int32_t>(kept[i + 1]);
    if (std::min(here, next) == std::min(a, b) && std::max(here, next) == std::max(a, b)) {
      return std::abs(target - boundary) <= 1e-5 * boundary;
    }
  }
  return false;
}

// Weights are within 2^-22 of themselves on both sides, so their sums' logarithms differ by less
// than 2^-21; float32 rounds each result by 2^-24 of itself.
void ExpectLogprob(float got, float want) {
  if (got == want) return;  // both may be -infinity
  EXPECT_LE(std::abs(static_cast<double>(got) - static_cast<double>(want)),
            0x1.0p-21 + std::abs(static_cast<double>(want)) * 0x1.0p-23)
      << got << " instead of " << want;
}

void ExpectLogprobs(const DrawnToken& got, const SampledToken& want) {
  ExpectLogprob(got.logprob, want.logprob);
  EXPECT_EQ(got.rank, want.rank);
  for (size_t i = 0; i < kMaxDrawnLogprobs; ++i) {
    if (i < want.top.size()) {
      EXPECT_EQ(got.top_ids[i], want.top[i].id) << "alternative " << i;
      ExpectLogprob(got.top_logprobs[i], want.top[i].logprob);
    } else {
      EXPECT_EQ(got.top_ids[i], kPoisoned) << "alternative " << i << " was not asked for";
    }
  }
}

// Compares what the device left behind with the host's draws; counts draws at a boundary.
void ExpectAsSampler(const Batch& batch, int* at_boundary) {
  const std::vector<DrawnToken> drawn = batch.drawn.ToHost();
  std::vector<int32_t> tokens(static_cast<size_t>(kMaxSlots), kPoisoned);
  Sampler sampler(batch.vocabulary);
  for (size_t row = 0; row < batch.rows.size(); ++row) {
    const DrawRow& how = batch.rows[row];
    const DrawnToken& got = drawn[row];
    SCOPED_TRACE(::testing::Message()
                 << "row " << row << " vocabulary " << batch.vocabulary << " temperature "
                 << how.temperature << " top_k " << how.top_k << " top_p " << how.top_p << " min_p "
                 << how.min_p << " logprobs " << how.logprobs);
    if (how.slot < 0) {
      EXPECT_EQ(got.id, kPoisoned) << "padding was drawn for";
      continue;
    }
    const float* logits = batch.row_logits(row);
    const auto want = sampler.Sample(logits, ToSampling(how), {}, {}, how.position);
    tokens[static_cast<size_t>(how.slot)] = got.id;
    ASSERT_EQ(got.finite, want.ok() ? 1 : 0);
    if (!want.ok()) {
      EXPECT_EQ(got.id, 0);
    } else if (got.id == want->id) {
      if (how.logprobs >= 0) ExpectLogprobs(got, *want);
    } else {
      ++*at_boundary;
      EXPECT_TRUE(AtBoundary(logits, batch.vocabulary, how, got.id, want->id))
          << got.id << " instead of " << want->id;
    }
  }
  EXPECT_EQ(batch.drawn_tokens.ToHost(), tokens);
}

TEST(Philox, IsTheHosts) {
  Random random(1);
  for (int i = 0; i < 1000; ++i) {
    const uint64_t seed = random(), position = i % 2 == 0 ? random() : static_cast<uint64_t>(i);
    EXPECT_EQ(PhiloxUniform(seed, position), fox::PhiloxUniform(seed, position));
  }
}

class DrawTest : public ::testing::TestWithParam<int32_t> {};

TEST_P(DrawTest, DrawsWhatTheSamplerDraws) {
  const int32_t vocabulary = GetParam();
  Random random(static_cast<uint64_t>(vocabulary));
  int at_boundary = 0;
  for (const size_t count : {1, 3, 32, 48, 128}) {  // every number of blocks a row
    Batch batch = RandomBatch(count, vocabulary, random);
    batch.Upload();
    ASSERT_EQ(Draw(batch.params(), nullptr), cudaSuccess);
    ExpectAsSampler(batch, &at_boundary);
  }
  // The device's sums are within 2^-32 of the host's.
  EXPECT_LE(at_boundary, 1);
}

INSTANTIATE_TEST_SUITE_P(Vocabularies, DrawTest,
                         ::testing::Values(1, 2, 7, 256, 1000, 4097, 32000, 50277));

// One row, each token as often as the host draws it: all positions of one request.
TEST(Draw, ManyPositionsOfOneRequest) {
  constexpr int32_t kVocabulary = 600;
  Random random(5);
  const std::vector<float> logits = MakeLogits(Logits::kNormal, kVocabulary, random);
  int at_boundary = 0;
  for (const float top_p : {1.0f, 0.97f}) {
    Batch batch(128, kVocabulary, 0);
    for (size_t row = 0; row < batch.rows.size(); ++row) {
      batch.SetLogits(row, logits);
      batch.rows[row] = {SlotOf(row), 1.0f, top_p, 0.0f, 0, -1, 77, row};
    }
    batch.Upload();
    ASSERT_EQ(Draw(batch.params(), nullptr), cudaSuccess);
    ExpectAsSampler(batch, &at_boundary);
  }
  EXPECT_LE(at_boundary, 1);
}

TEST(Draw, NoRowsIsNoWork) {
  DrawParams params;
  params.logits.cols = 7;
  EXPECT_EQ(Draw(params, nullptr), cudaSuccess);
}

TEST(Draw, AGraphDrawsForTheRowsOfTheMoment) {
  constexpr int32_t kVocabulary = 50277;
  constexpr size_t kRows = 8;
  Random random(9);
  Batch batch = RandomBatch(kRows, kVocabulary, random);
  batch.Upload();
  cudaStream_t stream = nullptr;
  ASSERT_EQ(cudaStreamCreate(&stream), cudaSuccess);
  ASSERT_EQ(Draw(batch.params(), stream), cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  // Twice: the second launch may overlap the first one's end.
  ASSERT_EQ(Draw(batch.params(), stream), cudaSuccess);
  ASSERT_EQ(Draw(batch.params(), stream), cudaSuccess);
  ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
  ASSERT_EQ(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
  int at_boundary = 0;
  for (int replay = 0; replay < 4; ++replay) {
    for (size_t row = 0; row < kRows; ++row) {
      batch.SetLogits(row, MakeLogits(Logits::kNormal, kVocabulary, random));
      batch.rows[row] =
          MakeRow(kVocabulary, row % 4 == 3 ? -1 : SlotOf(row + random() % 2 * 64), random);
    }
    batch.Upload();
    ASSERT_EQ(cudaGraphLaunch(exec, stream), cudaSuccess);
    ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    ExpectAsSampler(batch, &at_boundary);
  }
  EXPECT_LE(at_boundary, 1);
  EXPECT_EQ(cudaGraphExecDestroy(exec), cudaSuccess);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
}

}  // namespace
}  // namespace fox::cuda
