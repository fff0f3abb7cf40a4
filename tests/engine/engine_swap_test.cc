// Preemption by swapping. Over a real model: the same bits whether a sequence is swapped out
// or computed again. Over the simulation's executor: what happens to those that are swapped out.
#include <cstdio>
#include <functional>
#include <random>

#include "tests/engine/engine_fixture.h"
#include "tests/engine/fast_copies.h"
#include "tests/engine/pipelined_executor.h"
#include "tests/engine/random_streams.h"

namespace fox {
namespace {

struct SwappingModel {
  const char* model;
  const char* dtype;
  int32_t vocab;
  int64_t pool_tokens;  // unpruned tokens that the pool holds
  AcpMode acp = AcpMode::kCertified;
};

struct SwapOutcome {
  StreamResults results;
  EngineStats stats;
};

SwapOutcome RunAll(const EngineConfig& config, const std::vector<Request>& requests, int gap,
                   int depth) {
  SwapOutcome run;
  auto loaded = LoadEngine(config);
  EXPECT_TRUE(loaded.ok()) << loaded.status();
  auto& runner = static_cast<ModelRunner&>(*loaded->executor);
  FastCopies fast(runner);
  PipelinedExecutor pipeline(fast);
  StepExecutor& executor = depth == 2 ? static_cast<StepExecutor&>(pipeline) : fast;
  loaded->engine = std::make_unique<Engine>(loaded->options, executor);
  run.results = RunStreams(*loaded->engine, runner, requests, gap, 1);
  loaded->engine->FlushPrefixCache();
  while (loaded->engine->HasWork()) loaded->engine->Step(1000);
  run.stats = loaded->engine->stats();
  EXPECT_EQ(run.stats.swapped, 0);
  EXPECT_EQ(run.stats.swap_used_bytes, 0);
  EXPECT_EQ(runner.cache().FreePages(), runner.limits().num_pages);
  loaded->engine.reset();
  return run;
}

std::vector<Request> MakeRequests(const SwappingModel& variant) {
  std::mt19937_64 rng(11);
  std::vector<Request> requests;
  for (int i = 0; i < 10; ++i) {
    // Answers that are longer than expected.
    Request request = RandomRequest(i, i % 3 == 2 ? 200 : 60, variant.vocab, rng);
    request.stop.max_tokens = 150 + 30 * (i % 7);
    request.sampling.temperature = i % 3 == 0 ? 0.0F : 0.9F;
    request.sampling.logprobs = 0;
    if (i % 4 == 1) request.sampling.presence_penalty = 0.5F;
    if (i % 4 == 2) request.sampling.prompt_logprobs = 0;
    if (i % 4 == 3) request.sampling.repetition_penalty = 1.3F;
    requests.push_back(std::move(request));
  }
  return requests;
}

class SwapInvarianceTest : public ::testing::TestWithParam<SwappingModel> {};

TEST_P(SwapInvarianceTest, TokensAndCertificatesDoNotDependOnSwapping) {
  const SwappingModel& variant = GetParam();
  EngineConfig config = GoldenConfig(variant.model);
  config.dtype = variant.dtype;
  config.runner.acp = variant.acp;
  config.plain_gemm = true;
  config.runner.max_num_seqs = 1;
  config.engine.prefix_cache_share = 0;
  const std::vector<Request> requests = MakeRequests(variant);
  const SwapOutcome solo = RunAll(config, requests, 0, 1);

  struct SwapSchedule {
    int32_t seqs;
    int64_t batch_tokens;
    int64_t swap_sequences;  // of 400 tokens that the swap space holds
    int gap;
    int depth;
    double share;  // of the prefix cache
  };
  int64_t swaps = 0, recomputed = 0;
  for (const SwapSchedule& s :
       {SwapSchedule{8, 512, 10, 0, 1, 0}, SwapSchedule{8, 512, 10, 0, 2, 0.3},
        SwapSchedule{16, 100, 1, 2, 2, 0}, SwapSchedule{8, 37, 2, 1, 1, 0.3},
        SwapSchedule{4, 64, 3, 0, 2, 0}}) {
    config.runner.max_num_seqs = s.seqs;
    config.runner.max_num_batched_tokens = s.batch_tokens;
    config.kv_cache_bytes = PoolBytes(config, variant.pool_tokens);
    config.engine.prefix_cache_share = s.share;
    config.swap_space_bytes = SwapBytesFor(config, s.swap_sequences, 400);
    const SwapOutcome run = RunAll(config, requests, s.gap, s.depth);
    ASSERT_EQ(run.results.size(), solo.results.size());
    for (const auto& [id, result] : run.results) {
      const StreamResult& expected = solo.results.at(id);
      ExpectSameBits(id, result, expected);
      EXPECT_EQ(result.stats.acp.max_log_evicted_mass, expected.stats.acp.max_log_evicted_mass);
      swaps += result.stats.swaps;
      recomputed += result.stats.preemptions - result.stats.swaps;
      if (result.stats.preemptions > result.stats.swaps) continue;
      // A page that was swapped is counted once.
      EXPECT_EQ(result.stats.acp.pages_evicted, expected.stats.acp.pages_evicted);
      EXPECT_EQ(result.stats.acp.pages_allocated, expected.stats.acp.pages_allocated);
    }
  }
  std::printf("%d swapped in, %d computed again; %d evicted\n", static_cast<int>(swaps),
              static_cast<int>(recomputed), static_cast<int>(solo.stats.pages_evicted));
  EXPECT_GE(swaps, 3);
}

INSTANTIATE_TEST_SUITE_P(
    Models, SwapInvarianceTest,
    ::testing::Values(SwappingModel{"dev_pro_d64", "f32", 512, 320},
                      SwappingModel{"dev_pro_d64", "f32", 512, 576, AcpMode::kOff},
                      SwappingModel{"dev_pro_d128", "f32", 300, 576, AcpMode::kPaper},
                      SwappingModel{"tiny_fla", "f32", 128, 576},
                      SwappingModel{"tiny_rope", "bf16", 128, 512}));

// Two lists, seven page rows; two sequences start in them and grow to four rows each.
class EngineSwapTest : public EngineTest {
 protected:
  void StartSmall(int64_t swap_pages) {
    FakeOptions fake = Roomy();
    fake.limits.num_pages = 14;
    sim::SetSwapSpace(0, &fake.limits);
    sim::SetSwapSpace(fake.limits.SwapBytes(swap_pages), &fake.limits);
    fake.limits.swap_rate = 1e15;
    EngineOptions options;
    options.kv_admission = KvAdmission::kWorstCase;
    Start(fake, options);
  }
  void Submit(const Request& request) {
    requests_.push_back(request);
    ASSERT_TRUE(engine_->Submit(request, 0).ok());
  }
  // Until so many are swapped out.
  void StepUntilSwapped(int64_t count) {
    for (int i = 0; i < 1000 && engine_->stats().swapped != count; ++i) Step();
    ASSERT_EQ(engine_->stats().swapped, count);
    EXPECT_GT(engine_->stats().swap_used_bytes, 0);
  }
  // All ended with the tokens that they would have alone; nothing is left.
  void ExpectTheSameTokens() {
    RunToEnd();
    for (const Request& request : requests_) {
      const Received& received = received_.at(request.id);
      if (!received.finish || !received.finish->status.ok()) continue;
      EXPECT_EQ(received.tokens, Reference(request).tokens) << request.id;
    }
    EXPECT_EQ(engine_->stats().swapped, 0);
    EXPECT_EQ(engine_->stats().swap_used_bytes, 0);
    EXPECT_EQ(executor_->free_pages(), 14);
  }
  const RequestStats& StatsOf(RequestId id) { return received_.at(id).finish->stats; }

  std::vector<Request> requests_;
};

TEST_P(EngineSwapTest, WhoIsPreemptedGoesOnWhereItWas) {
  StartSmall(100);
  Submit(MakeRequest(1, 150, 100));
  Submit(MakeRequest(2, 180, 60));
  StepUntilSwapped(1);
  ExpectTheSameTokens();
  EXPECT_EQ(StatsOf(1).preemptions, 0);
  EXPECT_EQ(StatsOf(2).preemptions, 1);
  EXPECT_EQ(StatsOf(2).swaps, 1);
  // As if it had never left; surplus is in no statistics.
  EXPECT_EQ(StatsOf(2).acp.pages_allocated, StatsOf(1).acp.pages_allocated);
  EXPECT_EQ(StatsOf(2).acp.peak_pages, StatsOf(1).acp.peak_pages);
  EXPECT_EQ(engine_->stats().swap_outs, 1);
  EXPECT_EQ(engine_->stats().preemptions, 1);
}

// Its reader is slow: it holds pages until another needs them, rests in swap space, and goes on
// from there.
TEST_P(EngineSwapTest, APausedOneRestsInSwapSpace) {
  StartSmall(100);
  Request slow = MakeRequest(1, 200, 100);
  slow.flow_window = 4;
  Submit(slow);
  for (int i = 0; i < 100 && engine_->stats().paused == 0; ++i) Step();
  ASSERT_EQ(engine_->stats().paused, 1);
  while (engine_->HasWork()) Step();
  EXPECT_EQ(engine_->stats().swapped, 0);
  Submit(MakeRequest(2, 250, 20));
  StepUntilSwapped(1);
  EXPECT_EQ(engine_->stats().paused, 1);
  while (engine_->HasWork()) Step();
  EXPECT_EQ(engine_->stats().swapped, 1);
  EXPECT_EQ(engine_->stats().paused, 1);
  for (int i = 0; i < 1000 && !received_[1].finish; ++i) {
    engine_->Acknowledge(1, 4);
    Step();
  }
  ExpectTheSameTokens();
  EXPECT_EQ(StatsOf(1).preemptions, 1);
  EXPECT_EQ(StatsOf(1).swaps, 1);
}

INSTANTIATE_TEST_SUITE_P(Depths, EngineSwapTest,
                         testing::Values(Pipeline{1, false}, Pipeline{2, true},
                                         Pipeline{2, false}));

}  // namespace
}  // namespace fox
