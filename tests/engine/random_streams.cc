// Makes requests and drives an engine step by step. See random_streams.h.
#include "tests/engine/random_streams.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/engine/pipelined_executor.h"
#include "tests/engine/sim/page_audit.h"

namespace fox {
namespace {

bool SameBits(const std::vector<SampledToken>& a, const std::vector<SampledToken>& b) {
  const auto same = [](const SampledToken& x, const SampledToken& y) {
    const auto best = [](const TokenLogprob& t, const TokenLogprob& u) {
      return t.id == u.id && t.logprob == u.logprob;
    };
    return x.id == y.id && x.logprob == y.logprob && x.rank == y.rank &&
           std::equal(x.top.begin(), x.top.end(), y.top.begin(), y.top.end(), best);
  };
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), same);
}

}  // namespace

EngineConfig GoldenConfig(const std::string& model) {
  EngineConfig config;
  config.model_dir = std::string(FOX_SOURCE_DIR) + "/tests/golden/" + model;
  config.runner.max_model_len = 1024;
  config.kv_cache_bytes = int64_t{256} << 20;
  return config;
}

EngineConfig GoldenConfig(const GoldenModel& model) {
  EngineConfig config = GoldenConfig(model.name);
  config.dtype = model.dtype;
  config.runner.acp = model.acp;
  config.plain_gemm = true;
  return config;
}

int64_t PoolBytes(const EngineConfig& config, int64_t tokens) {
  const auto probe = LoadRunner(config);
  EXPECT_TRUE(probe.ok()) << probe.status();
  if (!probe.ok()) return 0;
  const PagedKvShape& shape = (*probe)->cache().shape;
  return tokens / kPageTokens * shape.lists_per_slot() * static_cast<int64_t>(shape.page_bytes());
}

std::vector<int32_t> RandomTokens(size_t count, int32_t vocab, std::mt19937_64& rng) {
  std::vector<int32_t> tokens(count);
  for (int32_t& token : tokens) {
    token = static_cast<int32_t>(rng() % static_cast<uint64_t>(vocab));
  }
  return tokens;
}

Request RandomRequest(int index, size_t longest, int32_t vocab, std::mt19937_64& rng) {
  Request request;
  request.id = static_cast<RequestId>(index + 1);
  const size_t length = 1 + rng() % longest;
  request.prompt = RandomTokens(length, vocab, rng);
  request.sampling.temperature = 0;
  request.sampling.seed = rng();
  request.stop.max_tokens = static_cast<int32_t>(40 + rng() % 160);
  request.stop.ignore_eos = true;
  return request;
}

std::vector<int32_t> Ids(const StreamResult& result) {
  std::vector<int32_t> ids;
  for (const SampledToken& token : result.tokens) ids.push_back(token.id);
  return ids;
}

bool SameBits(const StreamResult& a, const StreamResult& b) {
  return SameBits(a.tokens, b.tokens) && SameBits(a.scores, b.scores);
}

void ExpectSameBits(RequestId id, const StreamResult& got, const StreamResult& want) {
  EXPECT_EQ(Ids(got), Ids(want)) << "request " << id;
  EXPECT_TRUE(SameBits(got, want)) << "request " << id;
}

void AddOutputs(const std::vector<RequestOutput>& outputs, StreamResults* results) {
  for (const RequestOutput& output : outputs) {
    StreamResult& result = (*results)[output.id];
    result.tokens.insert(result.tokens.end(), output.tokens.begin(), output.tokens.end());
    result.scores.insert(result.scores.end(), output.prompt_logprobs.begin(),
                         output.prompt_logprobs.end());
    if (!output.finish) continue;
    EXPECT_TRUE(output.finish->status.ok()) << output.finish->status;
    result.stats = output.finish->stats;
  }
}

StreamResults RunStreams(Engine& engine, ModelRunner& runner, const std::vector<Request>& requests,
                         int gap, int audit_every) {
  StreamResults results;
  size_t next = 0;
  for (int step = 0; next < requests.size() || engine.HasWork(); ++step) {
    SCOPED_TRACE(step);
    const Seconds now = 0.001 * step;
    if (next < requests.size() && step % (gap + 1) == 0) {
      EXPECT_TRUE(engine.Submit(requests[next++], now).ok());
    }
    AddOutputs(engine.Step(now), &results);
    if (step % audit_every == 0) {
      EXPECT_EQ(AuditPages(runner.cache(), runner.ops()), absl::OkStatus());
    }
  }
  EXPECT_TRUE(engine.fatal().ok()) << engine.fatal();
  EXPECT_EQ(AuditPages(runner.cache(), runner.ops()), absl::OkStatus());
  return results;
}

StreamRun RunEngine(const EngineConfig& config, const std::vector<Request>& requests, int gap,
                    int depth) {
  auto loaded = LoadEngine(config);
  EXPECT_TRUE(loaded.ok()) << loaded.status();
  if (!loaded.ok()) return {};
  auto& runner = static_cast<ModelRunner&>(*loaded->executor);
  PipelinedExecutor pipeline(runner);
  StepExecutor& executor = depth == 2 ? static_cast<StepExecutor&>(pipeline) : runner;
  Engine engine(loaded->options, executor, config.observers);
  StreamRun run;
  run.results = RunStreams(engine, runner, requests, gap, 1);
  run.stats = engine.stats();
  EXPECT_EQ(pipeline.fed_samples() > 0, depth == 2);
  engine.FlushPrefixCache();
  while (engine.HasWork()) engine.Step(1000);
  EXPECT_EQ(engine.stats().snapshots, 0);
  EXPECT_EQ(FreePages(runner.cache(), runner.ops()), runner.limits().num_pages);
  EXPECT_EQ(AuditPages(runner.cache(), runner.ops()), absl::OkStatus());
  return run;
}

}  // namespace fox
