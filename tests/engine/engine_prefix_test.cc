// The prefix cache over a real model and real pages: the same bits with and without it, less work,
// and nothing lost.
#include <gtest/gtest.h>

#include <limits>
#include <map>
#include <random>

#include "tests/engine/random_streams.h"

namespace fox {
namespace {

EngineConfig Config(const GoldenModel& model, double share = 0.5) {
  EngineConfig config = GoldenConfig(model);
  config.engine.prefix_cache_share = share;
  config.engine.prefix_cache_interval = 128;
  return config;
}

// A small model: the counts do not depend on its size.
constexpr GoldenModel kModel{"tiny_fla", "f32", 128};

// Counts the tokens of each request in each step, and the uses of snapshots.
class Meter : public StepObserver {
 public:
  void AfterSubmit(const StepPlan& plan) override {
    ++steps;
    for (const PlannedSequence& sequence : plan.sequences) {
      fed[sequence.id].emplace_back(steps, sequence.token_ids.size());
    }
    starts += plan.starts.size();
    snapshots += plan.snapshots.size();
  }

  int steps = 0;
  std::map<RequestId, std::vector<std::pair<int, size_t>>> fed;
  size_t starts = 0, snapshots = 0;
};

struct Outcome : StreamRun, Meter {};

Outcome RunAll(EngineConfig config, const std::vector<Request>& requests, int gap, int depth = 1) {
  Outcome run;
  config.observers = {&run};
  static_cast<StreamRun&>(run) = RunEngine(config, requests, gap, depth);
  return run;
}

Request GreedyRequest(RequestId id, std::vector<int32_t> prompt, int32_t max_tokens = 20) {
  Request request;
  request.id = id;
  request.prompt = std::move(prompt);
  request.sampling.temperature = 0;
  request.sampling.logprobs = 0;
  request.sampling.seed = id;
  request.stop.max_tokens = max_tokens;
  request.stop.ignore_eos = true;
  return request;
}

std::vector<int32_t> operator+(std::vector<int32_t> a, const std::vector<int32_t>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// Questions on two documents, second turns, a prompt that comes again, prompts that end with a
// page, and the same with another tolerance, without pruning, and scored.
std::vector<Request> Conversations(const GoldenModel& variant, const EngineConfig& without) {
  std::mt19937_64 rng(7);
  const auto random = [&](size_t count) { return RandomTokens(count, variant.vocab, rng); };
  const auto first = random(300), second = random(192);
  std::vector<Request> requests;
  const auto add = [&](std::vector<int32_t> prompt, int32_t max_tokens) -> Request& {
    return requests.emplace_back(GreedyRequest(requests.size() + 1, std::move(prompt), max_tokens));
  };
  add(first + random(20), 90);
  add(second, 70);
  add(first + random(40), 40).sampling.temperature = 0.9F;
  add(second + random(64), 40);
  add(first, 30);
  add(first + random(20), 30).sampling.presence_penalty = 0.5F;
  add(second, 40).sampling.temperature = 0.8F;
  add(first + random(5), 20).sampling.prompt_logprobs = 0;
  if (variant.acp != AcpMode::kOff) {
    add(first + random(9), 20).log_tolerance = -14;
    add(first + random(9), 20).log_tolerance = -14;
    add(second + random(9), 20).log_tolerance = -std::numeric_limits<double>::infinity();
  }
  const StreamResults answers = RunAll(without, requests, 200).results;
  for (const size_t turn : {0u, 1u, 3u}) {
    const Request before = requests[turn];
    add(before.prompt + Ids(answers.at(before.id)) + random(33), 50);
  }
  return requests;
}

class EnginePrefixTest : public ::testing::TestWithParam<GoldenModel> {};

TEST_P(EnginePrefixTest, TokensAndCertificatesDoNotDependOnTheCache) {
  const GoldenModel& variant = GetParam();
  EngineConfig without = Config(variant, 0);
  without.runner.max_num_seqs = 1;
  const std::vector<Request> requests = Conversations(variant, without);
  const Outcome solo = RunAll(without, requests, 0);
  EXPECT_EQ(solo.starts + solo.snapshots, 0u);

  struct Limits {
    int32_t seqs;
    int64_t batch_tokens;
    int64_t pool_tokens;  // unpruned tokens that the pool holds
    int gap;
    int depth;
    double share;
  };
  for (const Limits& s : {Limits{1, 512, 16384, 0, 1, 0.5}, Limits{4, 100, 16384, 30, 2, 0.5},
                          Limits{16, 512, 16384, 0, 2, 0.3}, Limits{8, 64, 1024, 3, 1, 0.9},
                          Limits{8, 512, 1024, 0, 2, 0.5}, Limits{3, 37, 768, 10, 2, 0.2}}) {
    EngineConfig config = Config(variant, s.share);
    config.runner.max_num_seqs = s.seqs;
    config.runner.max_num_batched_tokens = s.batch_tokens;
    config.kv_cache_bytes = PoolBytes(config, s.pool_tokens);
    const Outcome run = RunAll(config, requests, s.gap, s.depth);
    SCOPED_TRACE(s.batch_tokens);
    ASSERT_EQ(run.results.size(), solo.results.size());
    for (const auto& [id, result] : run.results) {
      SCOPED_TRACE(id);
      const StreamResult& expected = solo.results.at(id);
      ExpectSameBits(id, result, expected);
      if (result.stats.preemptions > 0) continue;
      EXPECT_EQ(result.stats.acp.pages_evicted, expected.stats.acp.pages_evicted);
      EXPECT_EQ(result.stats.acp.pages_allocated, expected.stats.acp.pages_allocated);
      EXPECT_EQ(result.stats.acp.max_log_evicted_mass, expected.stats.acp.max_log_evicted_mass);
    }
    // A small pool may need all its pages for running sequences.
    EXPECT_GE(run.starts, s.pool_tokens > 1024 ? 5u : 0u);
    EXPECT_GT(run.snapshots, 0u);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, EnginePrefixTest,
                         ::testing::Values(GoldenModel{"dev_pro_d64", "f32", 512},
                                           GoldenModel{"dev_pro_d128", "f32", 300, AcpMode::kPaper},
                                           GoldenModel{"tiny_fla", "f32", 128},
                                           GoldenModel{"tiny_fla", "f32", 128, AcpMode::kOff},
                                           GoldenModel{"tiny_rope", "bf16", 128}));

// One salt's prompt, then (while it is computed, unless `is_over`) another request.
Meter FeedOf(Request first, Request second, bool is_over) {
  Meter feed;
  EngineConfig config = Config(kModel);
  config.runner.max_num_batched_tokens = 100;
  config.observers = {&feed};
  auto loaded = LoadEngine(config);
  EXPECT_TRUE(loaded.ok()) << loaded.status();
  const auto run = [&] {
    for (int step = 0; loaded->engine->HasWork(); ++step) loaded->engine->Step(0.001 * step);
  };
  EXPECT_TRUE(loaded->engine->Submit(std::move(first), 0).ok());
  if (is_over) run();
  EXPECT_TRUE(loaded->engine->Submit(std::move(second), 0).ok());
  run();
  return feed;
}

// So the time of a prompt does not reveal the prefixes cached for another salt.
TEST(EnginePrefixTest, APromptOfAnotherSaltIsFedAsAFreshOne) {
  std::mt19937_64 rng(8);
  const auto known = RandomTokens(300, kModel.vocab, rng);
  const auto fresh = RandomTokens(300, kModel.vocab, rng);
  Request first = GreedyRequest(1, known, 1);
  first.cache_salt = "a";
  const auto second = [](const std::vector<int32_t>& prompt, const std::string& salt) {
    Request request = GreedyRequest(2, prompt, 8);
    request.cache_salt = salt;
    return request;
  };
  for (const bool is_over : {true, false}) {
    const Meter other = FeedOf(first, second(known, "b"), is_over);
    const Meter unseen = FeedOf(first, second(fresh, "b"), is_over);
    EXPECT_EQ(other.fed, unseen.fed) << is_over;
    EXPECT_EQ(other.steps, unseen.steps) << is_over;
    // A prompt of the same salt is found, or waited for.
    EXPECT_NE(FeedOf(first, second(known, "a"), is_over).fed, unseen.fed) << is_over;
  }
}

constexpr GoldenModel kUnpruned{"tiny_fla", "f32", 128, AcpMode::kOff};

std::vector<Request> Strangers(RequestId count, size_t prompt, int32_t max_tokens) {
  std::mt19937_64 rng(count);
  std::vector<Request> requests;
  for (RequestId id = 1; id <= count; ++id) {
    requests.push_back(GreedyRequest(id, RandomTokens(prompt, kModel.vocab, rng), max_tokens));
  }
  return requests;
}

TEST(EnginePrefixTest, SnapshotsGoBeforeAnyRequestIsPreempted) {
  // Two requests at a time find room without eviction, and leave no room for snapshots.
  for (const int depth : {1, 2}) {
    SCOPED_TRACE(depth);
    EngineConfig config = Config(kUnpruned, 1);
    config.kv_cache_bytes = PoolBytes(config, 640);
    config.runner.max_num_seqs = 2;
    const Outcome run = RunAll(config, Strangers(24, 200, 100), 5, depth);
    EXPECT_EQ(run.stats.preemptions, 0);
    EXPECT_GT(run.stats.snapshots_dropped, 20);
    EXPECT_EQ(run.stats.finished, 24);
  }
}

TEST(EnginePrefixTest, SnapshotsStayWithinTheirShare) {
  EngineConfig config = Config(kUnpruned, 0.25);
  config.kv_cache_bytes = PoolBytes(config, 4096);
  const Outcome run = RunAll(config, Strangers(30, 150, 50), 60);
  EXPECT_GT(run.stats.snapshots, 2);
  EXPECT_LE(run.stats.snapshot_pages, run.stats.num_pages / 4);
  EXPECT_GT(run.stats.snapshots_dropped, 10);
}

}  // namespace
}  // namespace fox
