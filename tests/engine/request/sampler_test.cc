// The sampler against plain float64 arithmetic, at extremes, and as a distribution (chi-square with
// fixed seeds) against transformers.
#include "engine/request/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <random>
#include <set>

#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/models/temporary_dir.h"

namespace fox {
namespace {

using Row = std::vector<float>;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

Row RandomRow(size_t size, uint64_t seed, float scale = 2.0f) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal(0.0f, scale);
  Row row(size);
  for (float& x : row) x = normal(random);
  return row;
}

SamplingParams Greedy() {
  SamplingParams params;
  params.temperature = 0.0f;
  return params;
}

SampledToken Sample(const Row& row, const SamplingParams& params, uint64_t position = 0,
                    const TokenCounts& counts = {}, const std::vector<int32_t>& masked = {}) {
  Sampler sampler(static_cast<int32_t>(row.size()));
  auto token = sampler.Sample(row.data(), params, counts, masked, position);
  EXPECT_TRUE(token.ok()) << token.status();
  return token.ok() ? *token : SampledToken{-1, 0, 0, {}};
}

std::vector<double> Softmax(const Row& row, double temperature = 1.0) {
  const double largest = *std::max_element(row.begin(), row.end());
  std::vector<double> p;
  for (const float x : row) p.push_back(std::exp((static_cast<double>(x) - largest) / temperature));
  const double sum = std::accumulate(p.begin(), p.end(), 0.0);
  for (double& x : p) x /= sum;
  return p;
}

TEST(SamplerTest, GreedyTakesTheLargestAndTheLowestOfEquals) {
  for (const size_t size : {1u, 2u, 7u, 1023u, 1024u, 1025u, 50277u}) {
    SCOPED_TRACE(size);
    Row row = RandomRow(size, size);
    const auto best = std::max_element(row.begin(), row.end());
    EXPECT_EQ(Sample(row, Greedy()).id, best - row.begin());
    row.assign(size, -3.0f);
    EXPECT_EQ(Sample(row, Greedy()).id, 0);
    row.back() = row[size / 2] = 5.0f;
    EXPECT_EQ(Sample(row, Greedy()).id, static_cast<int32_t>(size / 2));
  }
  EXPECT_EQ(Sample({-1.0f, -0.0f, 0.0f}, Greedy()).id, 1);  // both zeros are equal
  EXPECT_EQ(Sample({0.0f, -0.0f, -1.0f}, Greedy()).id, 0);
}

TEST(SamplerTest, NotFiniteIsAFailureWhereverItIs) {
  Sampler sampler(3000);
  for (const float bad : {kInfinity, -kInfinity, std::nanf("")}) {
    for (const size_t at : {0u, 1u, 1024u, 2999u}) {
      for (const float temperature : {0.0f, 1.0f}) {
        Row row = RandomRow(3000, at);
        row[at] = bad;
        SamplingParams params;
        params.temperature = temperature;
        SCOPED_TRACE(testing::Message() << bad << " at " << at << ", temperature " << temperature);
        EXPECT_EQ(sampler.Sample(row.data(), params, {}, {}, 0).status().code(),
                  absl::StatusCode::kInternal);
        EXPECT_FALSE(sampler.ScorePrompt(row.data(), params, 5).ok());
      }
    }
  }
}

TEST(SamplerTest, LogprobsMatchFloat64) {
  Row row = RandomRow(5000, 3, 4.0f);
  row[17] = row[4000] = 20.0f;
  SamplingParams params = Greedy();
  params.logprobs = 5;
  params.logprob_token_ids = {4999, 17};
  const SampledToken token = Sample(row, params);
  const std::vector<double> p = Softmax(row);
  // Weights are within 2^-22 of themselves, the result is rounded to float32.
  const auto near = [&](float logprob, int32_t id) {
    const double expected = std::log(p[static_cast<size_t>(id)]);
    EXPECT_NEAR(logprob, expected, 0x1.0p-22 + std::abs(expected) * 0x1.0p-24) << id;
  };
  EXPECT_EQ(token.id, 17);
  EXPECT_EQ(token.rank, 1);
  near(token.logprob, 17);
  ASSERT_EQ(token.top.size(), 7u);
  EXPECT_EQ(token.top[0].id, 17);
  EXPECT_EQ(token.top[1].id, 4000);
  for (size_t i = 0; i < 7; ++i) {
    SCOPED_TRACE(i);
    near(token.top[i].logprob, token.top[i].id);
    if (i < 5) {
      EXPECT_EQ(token.top[i].rank, static_cast<int32_t>(i) + 1);
    }
    if (i > 0 && i < 5) {
      EXPECT_GE(token.top[i - 1].logprob, token.top[i].logprob);
    }
  }
  EXPECT_EQ(token.top[5].id, 4999);
  EXPECT_EQ(token.top[5].rank,
            1 + std::count_if(row.begin(), row.end(), [&](float x) { return x > row[4999]; }));
  EXPECT_EQ(token.top[6].rank, 1);
  params.logprobs = -1;
  params.logprob_token_ids.clear();
  EXPECT_TRUE(Sample(row, params).top.empty());
}

TEST(SamplerTest, ScoreIgnoresBiasAndPenalties) {
  const Row row = RandomRow(100, 9);
  SamplingParams params;
  params.prompt_logprobs = 2;
  params.logit_bias = {{7, 50.0f}};
  params.allowed_token_ids = {1};
  Sampler sampler(100);
  const auto token = sampler.ScorePrompt(row.data(), params, 42);
  ASSERT_TRUE(token.ok());
  EXPECT_EQ(token->id, 42);
  EXPECT_NEAR(token->logprob, std::log(Softmax(row)[42]), 1e-6);
  EXPECT_EQ(token->top.size(), 2u);
}

TEST(SamplerTest, BiasAllowedAndMask) {
  const Row row = {1.0f, 2.0f, 3.0f, 4.0f};
  SamplingParams params = Greedy();
  params.logit_bias = {{0, 10.0f}};
  EXPECT_EQ(Sample(row, params).id, 0);
  params.allowed_token_ids = {1, 2};
  EXPECT_EQ(Sample(row, params).id, 2);
  EXPECT_EQ(Sample(row, params, 0, {}, {2}).id, 1);
  Sampler sampler(4);
  EXPECT_FALSE(sampler.Sample(row.data(), params, {}, {1, 2}, 0).ok());
  params.logprobs = 4;
  const SampledToken token = Sample(row, params);
  EXPECT_NEAR(token.logprob, std::log(Softmax({2.0f, 3.0f})[1]), 1e-6);
  EXPECT_EQ(token.top[3].logprob, -kInfinity);
}

TEST(SamplerTest, TokensWithoutABitAreMasked) {
  std::mt19937_64 random(5);
  for (const int32_t size : {2, 31, 32, 33, 70, 1000}) {
    SCOPED_TRACE(size);
    const Row row = RandomRow(static_cast<size_t>(size), 3);
    std::vector<uint32_t> may_follow(static_cast<size_t>(size + 31) / 32);
    for (uint32_t& word : may_follow) word = static_cast<uint32_t>(random()) | 1;
    std::vector<int32_t> masked;
    for (int32_t id = 0; id < size; ++id) {
      if ((may_follow[static_cast<size_t>(id / 32)] >> (id % 32) & 1) == 0) masked.push_back(id);
    }
    SamplingParams params;
    params.logprobs = 0;
    const SampledToken want = Sample(row, params, 7, {}, masked);
    const auto got = Sampler(size).Sample(row.data(), params, {}, {}, 7, may_follow.data());
    EXPECT_EQ(got->id, want.id);
    EXPECT_EQ(got->logprob, want.logprob);
  }
}

TEST(SamplerTest, PenaltiesByHand) {
  TokenCounts counts;
  counts.AddPrompt({3, 0, 3});
  counts.AddGenerated(1);
  counts.AddGenerated(1);
  counts.AddGenerated(0);
  SamplingParams params = Greedy();
  params.repetition_penalty = 2.0f;
  params.presence_penalty = 0.5f;
  params.frequency_penalty = 0.25f;
  params.logprobs = 4;
  const Row row = {4.0f, -1.0f, 1.0f, 3.0f};
  const Row expected = {2.0f - 0.75f, -2.0f - 1.0f, 1.0f, 1.5f};
  const SampledToken token = Sample(row, params, 0, counts);
  EXPECT_EQ(token.id, 3);
  const std::vector<double> p = Softmax(expected);
  for (const TokenLogprob& top : token.top) {
    EXPECT_NEAR(top.logprob, std::log(p[static_cast<size_t>(top.id)]), 1e-6) << top.id;
  }
}

TEST(SamplerTest, AlwaysInsideTheVocabularyAtExtremes) {
  const float floats[] = {1e-45f, 1e-38f, 1e-6f, 1.0f, 100.0f};
  const float unit[] = {1e-45f, 1e-38f, 0.5f, std::nextafter(1.0f, 0.0f), 1.0f};
  const float largest = std::numeric_limits<float>::max();
  const Row rows[] = {{0.0f, 0.0f, 0.0f},         {largest, -largest, largest},
                      {-largest, -largest, 0.0f}, {1e-45f, -1e-45f, 0.0f},
                      {88.0f, -88.0f, 200.0f},    {5.0f}};
  TokenCounts counts;
  counts.AddGenerated(0);
  for (const Row& row : rows) {
    for (const float temperature : floats) {
      for (const float top_p : unit) {
        for (const float min_p : unit) {
          for (const float repetition : floats) {
            SamplingParams params;
            params.temperature = temperature;
            params.top_p = top_p;
            params.min_p = min_p;
            params.repetition_penalty = repetition;
            params.top_k = static_cast<int32_t>(row.size()) - 1;
            params.logprobs = 1;
            const SampledToken token = Sample(row, params, 3, counts);
            SCOPED_TRACE(testing::Message()
                         << temperature << " " << top_p << " " << min_p << " " << repetition);
            ASSERT_GE(token.id, 0);
            ASSERT_LT(token.id, static_cast<int32_t>(row.size()));
            ASSERT_LE(token.logprob, 0.0f);
          }
        }
      }
    }
  }
}

TEST(SamplerTest, TinyTemperatureIsGreedy) {
  const Row row = RandomRow(1000, 5);
  const int32_t best = Sample(row, Greedy()).id;
  for (const float temperature : {1e-45f, 1e-38f, 1e-4f}) {
    SCOPED_TRACE(temperature);
    SamplingParams params;
    params.temperature = temperature;
    for (uint64_t i = 0; i < 50; ++i) EXPECT_EQ(Sample(row, params, i).id, best) << i;
  }
}

TEST(SamplerTest, DependsOnSeedAndPositionAlone) {
  const Row row(64, 0.0f);
  SamplingParams params;
  params.seed = 5;
  const int32_t id = Sample(row, params, 10).id;
  EXPECT_EQ(Sample(row, params, 10).id, id);
  int other_position = 0, other_seed = 0;
  for (uint64_t i = 0; i < 100; ++i) {
    other_position += Sample(row, params, 11 + i).id != id ? 1 : 0;
    params.seed = 6 + i;
    other_seed += Sample(row, params, 10).id != id ? 1 : 0;
    params.seed = 5;
  }
  EXPECT_GT(other_position, 80);
  EXPECT_GT(other_seed, 80);
}

// Half of the mass is one token's, the other half the 50,276 others', shared evenly. Each of
// the two counts is binomial, each cell of the others' too: five standard deviations.
TEST(SamplerTest, TheTailOfALargeVocabularyIsSampled) {
  constexpr size_t kVocabulary = 50277, kSamples = 1000, kCells = 25;
  Row row(kVocabulary, -4.0f);
  row[7] = -4.0f + std::log(static_cast<float>(kVocabulary - 1));
  SamplingParams params;
  params.seed = 3;
  Sampler sampler(static_cast<int32_t>(kVocabulary));
  std::vector<double> cells(kCells);
  double likely = 0;
  std::set<int32_t> tail;
  for (uint64_t i = 0; i < kSamples; ++i) {
    const int32_t id = sampler.Sample(row.data(), params, {}, {}, i)->id;
    if (id == 7) {
      ++likely;
      continue;
    }
    ++cells[static_cast<size_t>(id) % kCells];
    tail.insert(id);
  }
  EXPECT_NEAR(likely, kSamples / 2.0, 5 * std::sqrt(kSamples / 4.0));
  const double expected = (kSamples - likely) / kCells;
  for (const double count : cells) EXPECT_NEAR(count, expected, 5 * std::sqrt(expected));
  // Among n even samples n^2 / 2V pairs are equal: 2.5 of some 500.
  EXPECT_GT(static_cast<double>(tail.size()), kSamples - likely - 2.5 - 5 * std::sqrt(2.5));
}

// The token changes only where the two best scores differ by less than twice the largest change of
// a scaled logit, D: with probability 1 - sum p / (p + (1 - p) exp(D)) <= D. So many changes, five
// standard deviations, and one.
TEST(SamplerTest, SmallChangesOfTheLogitsChangeFewTokens) {
  constexpr size_t kSamples = 300;
  const Row row = RandomRow(20000, 21);
  double largest = 0;
  for (const float x : row) largest = std::max(largest, std::abs(static_cast<double>(x)));
  std::mt19937_64 random(8);
  SamplingParams params;
  params.seed = 17;
  Sampler sampler(static_cast<int32_t>(row.size()));
  for (const float relative : {1e-6f, 1e-4f}) {
    int changed = 0;
    for (uint64_t i = 0; i < kSamples; ++i) {
      Row other = row;
      for (float& x : other) x *= random() % 2 == 0 ? 1 + relative : 1 - relative;
      changed += sampler.Sample(row.data(), params, {}, {}, i)->id !=
                         sampler.Sample(other.data(), params, {}, {}, i)->id
                     ? 1
                     : 0;
    }
    const double most = 2 * static_cast<double>(relative) * largest * kSamples;
    EXPECT_LE(changed, most + 5 * std::sqrt(most) + 1) << relative;
  }
}

// As often as transformers' own processors of logits sample each token, in the order of vLLM.
TEST(SamplerTest, SamplesWithTheProbabilitiesOfTransformers) {
  const auto golden =
      nlohmann::json::parse(FileContent(FOX_SOURCE_DIR "/tests/golden/transformers_sampling.json"));
  const auto row = golden["logits"].get<Row>();
  TokenCounts counts;
  counts.AddPrompt(golden["seen"].get<std::vector<int32_t>>());
  Sampler sampler(static_cast<int32_t>(row.size()));
  for (const auto& one : golden["cases"]) {
    SCOPED_TRACE(testing::Message() << one);
    SamplingParams params;
    params.temperature = one["temperature"];
    params.top_p = one["top_p"];
    params.min_p = one["min_p"];
    params.top_k = one["top_k"];
    params.repetition_penalty = one["repetition_penalty"];
    constexpr int kSamples = 40000;
    std::vector<int> sampled(row.size());
    for (uint64_t i = 0; i < kSamples; ++i) {
      params.seed = 2024 + i % 4;  // as four samples of one prompt
      ++sampled[static_cast<size_t>(sampler.Sample(row.data(), params, counts, {}, i / 4)->id)];
    }
    double chi = 0.0, rare_expected = 0.0, rare_count = 0.0;
    int cells = 0, may_be_sampled = 0;
    const auto add = [&](double expected, double count) {
      chi += (count - expected) * (count - expected) / expected;
      ++cells;
    };
    for (const auto& [id, probability] : one["probabilities"].get<std::map<size_t, double>>()) {
      const double expected = probability * kSamples;
      may_be_sampled += sampled[id];
      if (expected >= 5.0) {
        add(expected, sampled[id]);
      } else {
        rare_expected += expected;
        rare_count += sampled[id];
      }
    }
    EXPECT_EQ(may_be_sampled, kSamples) << "others are filtered";
    if (rare_expected >= 5.0) add(rare_expected, rare_count);
    // Mean k, standard deviation sqrt(2k): five of them.
    const double k = std::max(cells - 1, 1);
    EXPECT_LT(chi, k + 5.0 * std::sqrt(2.0 * k));
  }
}

}  // namespace
}  // namespace fox
