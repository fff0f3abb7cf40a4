// Preemption by swapping over a real model: the same bits whether a sequence is swapped out or
// computed again.
#include <cstdio>
#include <functional>
#include <random>

#include "tests/engine/engine_fixture.h"
#include "tests/engine/fast_copies.h"
#include "tests/engine/pipelined_executor.h"
#include "tests/engine/random_streams.h"
#include "tests/engine/sim/page_audit.h"

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
  EXPECT_EQ(FreePages(runner.cache(), runner.ops()), runner.limits().num_pages);
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

}  // namespace
}  // namespace fox
