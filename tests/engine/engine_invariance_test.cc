// Same tokens, same log-probability bits, whatever the batch, the chunk size, preemption or the
// placement of pages, with one step or two in flight: real model, real pages, the plain
// (row-independent) matrix product.
#include <gtest/gtest.h>

#include <random>

#include "tests/engine/pipelined_executor.h"
#include "tests/engine/random_streams.h"

namespace fox {
namespace {

struct Variant {
  const char* model;
  const char* dtype;
  int32_t vocab;
  AcpMode acp = AcpMode::kCertified;
};

EngineConfig BaseConfig(const Variant& variant) {
  EngineConfig config = GoldenConfig(variant.model);
  config.dtype = variant.dtype;
  config.runner.acp = variant.acp;
  config.plain_gemm = true;
  return config;
}

std::vector<Request> MakeRequests(int count, int32_t vocab, uint64_t seed) {
  std::mt19937_64 rng(seed);
  std::vector<Request> requests;
  for (int i = 0; i < count; ++i) {
    Request request = RandomRequest(i, i == 2 ? 300 : 60, vocab, rng);
    request.sampling.temperature = i % 3 == 0 ? 0.0f : 0.9f;
    request.sampling.top_p = 0.95f;
    request.sampling.logprobs = 0;
    if (i % 4 == 1) request.sampling.logprob_token_ids = {3};
    if (i % 4 >= 1) request.sampling.presence_penalty = 0.5f;
    if (i % 4 == 2) request.sampling.repetition_penalty = 1.3f;
    if (i % 4 == 3) request.sampling.frequency_penalty = 0.2f;
    if (i % 8 == 3) request.sampling.logit_bias = {{5, 2.0f}, {7, -100.0f}};
    requests.push_back(std::move(request));
  }
  return requests;
}

// Every fourth request is sampled on the host, the others by the executor where it has two steps in
// flight.
StreamResults RunAll(const EngineConfig& config, const std::vector<Request>& requests, int gap,
                     int depth) {
  auto loaded = LoadEngine(config);
  EXPECT_TRUE(loaded.ok()) << loaded.status();
  auto& runner = static_cast<ModelRunner&>(*loaded->executor);
  PipelinedExecutor pipeline(runner);
  if (depth == 2) loaded->engine = std::make_unique<Engine>(loaded->options, pipeline);
  StreamResults results = RunStreams(*loaded->engine, runner, requests, gap, 1);
  EXPECT_TRUE(runner.Run(StepPlan()).ok());
  EXPECT_EQ(pipeline.fed_samples() > 0, depth == 2);
  loaded->engine.reset();
  return results;
}

class EngineInvarianceTest : public ::testing::TestWithParam<Variant> {};

TEST_P(EngineInvarianceTest, TokensDoNotDependOnTheSchedule) {
  const Variant& variant = GetParam();
  const std::vector<Request> requests = MakeRequests(9, variant.vocab, 42);
  // The reference: one request at a time.
  EngineConfig config = BaseConfig(variant);
  config.runner.max_num_seqs = 1;
  const auto solo = RunAll(config, requests, 0, 1);

  struct Schedule {
    int32_t seqs = 0;
    int64_t batch_tokens = 0;
    int64_t pool_tokens = 0;  // unpruned tokens the pool holds
    int gap = 0;
    int depth = 0;
    double step_seconds = 0;  // on the streams' clock; steps take a thousandth of a second
  };
  int64_t preemptions = 0;
  for (const Schedule& s : {Schedule{16, 512, 8192, 0, 2}, Schedule{4, 64, 8192, 3, 1},
                            Schedule{16, 37, 8192, 1, 2}, Schedule{8, 512, 448, 0, 1, 0.002},
                            Schedule{8, 512, 448, 0, 2}, Schedule{16, 100, 448, 2, 2}}) {
    config = BaseConfig(variant);
    config.runner.max_num_seqs = s.seqs;
    config.runner.max_num_batched_tokens = s.batch_tokens;
    config.kv_cache_bytes = PoolBytes(config, s.pool_tokens);
    config.engine.max_step_seconds = s.step_seconds;
    const auto results = RunAll(config, requests, s.gap, s.depth);
    ASSERT_EQ(results.size(), solo.size());
    for (const auto& [id, result] : results) {
      ExpectSameBits(id, result, solo.at(id));
      if (result.stats.preemptions == 0) {
        EXPECT_EQ(result.stats.acp.pages_evicted, solo.at(id).stats.acp.pages_evicted);
        EXPECT_EQ(result.stats.acp.max_log_evicted_mass,
                  solo.at(id).stats.acp.max_log_evicted_mass);
      }
      EXPECT_LE(result.stats.acp.max_log_evicted_mass, -10);
      preemptions += result.stats.preemptions;
    }
  }
  // Without eviction the small pools are too small; with it the heads may forget fast enough.
  if (variant.acp == AcpMode::kOff) {
    EXPECT_GT(preemptions, 0);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Models, EngineInvarianceTest,
    ::testing::Values(Variant{"dev_pro_d64", "f32", 512}, Variant{"dev_pro_d64", "bf16", 512},
                      Variant{"dev_pro_d64", "f32", 512, AcpMode::kOff},
                      Variant{"dev_pro_d128", "f32", 300, AcpMode::kPaper},
                      Variant{"tiny_fla", "f32", 128}, Variant{"tiny_rope", "bf16", 128},
                      Variant{"dev_llama_d64", "f32", 512},
                      Variant{"transformers/llama_kv1_default_tied_forgetting", "bf16", 64}));

}  // namespace
}  // namespace fox
