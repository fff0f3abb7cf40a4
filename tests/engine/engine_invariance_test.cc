// Equal tokens and equal bits of log-probabilities for every batch, chunk size, preemption and
// placement of pages, with one or two steps in flight, with and without drafts, with grammars
// and beside them. Real model, real pages, the plain (row-independent) matrix product.
#include <gtest/gtest.h>

#include <random>
#include <regex>

#include "models/grammar/grammar.h"
#include "tests/engine/random_streams.h"

namespace fox {
namespace {

struct Variant {
  GoldenModel model;
  int64_t small_pool = 0;  // unpruned tokens of a pool that preempts requests; 0: not tried
};

// Words of three letters, each with a blank behind it; a token of the vocabulary is a letter or
// two.
constexpr char kWords[] = "([a-z]{3} )*", kSomeWords[] = "([a-z]{3} ){9}";
std::vector<std::string> Letters(int32_t vocab) {
  std::vector<std::string> tokens(static_cast<size_t>(vocab));
  for (size_t id = 8; id < tokens.size(); ++id) {
    tokens[id] = static_cast<char>('a' + id % 26);
    if (id % 3 == 0) tokens[id] += static_cast<char>('a' + id % 7);
    if (id % 5 == 0) tokens[id] = " ";
  }
  return tokens;
}
std::string TextOf(const StreamResult& result, int32_t vocab) {
  std::string text;
  for (const int32_t id : Ids(result)) text += Letters(vocab)[static_cast<size_t>(id)];
  return text;
}

// Every fourth request is sampled on the host, the others by the executor where it has two steps in
// flight. Answers are longer than expected.
std::vector<Request> MakeRequests(int32_t vocab) {
  GrammarCompiler compiler([vocab] { return Letters(vocab); });
  const auto words = *compiler.Compile({GrammarSource::Kind::kRegex, kWords});
  const auto some = *compiler.Compile({GrammarSource::Kind::kRegex, kSomeWords});
  std::mt19937_64 rng(42);
  std::vector<Request> requests;
  for (int i = 0; i < 10; ++i) {
    Request request = RandomRequest(i, i == 2 ? 200 : 60, vocab, rng);
    request.stop.max_tokens = 150 + 30 * (i % 7);
    request.sampling.temperature = i % 3 == 0 ? 0.0f : 0.9f;
    request.sampling.top_p = 0.95f;
    request.sampling.logprobs = 0;
    if (i % 4 == 1) request.sampling.logprob_token_ids = {3};
    if (i % 4 >= 1) request.sampling.presence_penalty = 0.5f;
    if (i % 4 == 2) request.sampling.prompt_logprobs = 0;
    if (i % 4 == 2) request.sampling.repetition_penalty = 1.3f;
    if (i % 4 == 3) request.sampling.frequency_penalty = 0.2f;
    const bool repeats = i % 8 == 0 && i % 5 < 3;
    if (repeats) request.sampling.allowed_token_ids = {3, 9, 11};
    if (i % 8 == 3) request.sampling.logit_bias = {{5, 2.0f}, {7, -100.0f}};
    if (i % 5 == 3) request.grammar = some;
    if (i % 5 == 4) request.grammar = words;  // two requests, as two choices of one
    requests.push_back(std::move(request));
  }
  return requests;
}

struct Schedule {
  int32_t seqs = 0;
  int64_t batch_tokens = 0;
  int64_t pool_tokens = 0;  // unpruned tokens the pool holds; 0: the variant's small pool
  int gap = 0, depth = 1;
  double step_seconds = 0;  // on the streams' clock; steps take a thousandth of a second
  double share = 0;         // of the prefix cache
};
constexpr Schedule kSchedules[] = {
    {16, 512, 8192, 0, 2}, {4, 64, 8192, 3, 1},     {16, 37, 8192, 1, 2}, {8, 512, 448, 0, 1, .002},
    {8, 512, 448, 0, 2},   {16, 100, 448, 2, 2},    {8, 512, 0, 0, 1},    {8, 512, 0, 0, 2, 0, .3},
    {16, 100, 0, 2, 2},    {8, 37, 0, 1, 1, 0, .3}, {4, 64, 0, 0, 2}};

class EngineInvarianceTest : public ::testing::TestWithParam<Variant> {};

TEST_P(EngineInvarianceTest, TokensAndCertificatesDoNotDependOnTheSchedule) {
  const auto& [model, small_pool] = GetParam();
  const std::vector<Request> requests = MakeRequests(model.vocab);
  EngineConfig config = GoldenConfig(model);
  config.engine.prefix_cache_share = 0;
  config.runner.max_num_seqs = 1;  // the reference: one request at a time
  const StreamResults solo = RunEngine(config, requests, 0, 1).results;
  for (const Request& request : requests) {
    SCOPED_TRACE(request.id);
    if (request.grammar == nullptr) continue;
    const std::string text = TextOf(solo.at(request.id), model.vocab);
    EXPECT_GT(text.size(), 8U);
    EXPECT_TRUE(std::regex_match(text + std::string((4 - text.size() % 4) % 4, '.'),
                                 std::regex("([a-z]{3} )*([a-z]{0,3}[.]*)")))
        << text;
  }
  int64_t preemptions = 0, in_small_pool = 0, accepted = 0, refused = 0;
  for (const Schedule& s : kSchedules) {
    if (s.pool_tokens + small_pool == 0) continue;
    config.runner.max_num_seqs = s.seqs;
    config.runner.max_num_batched_tokens = s.batch_tokens;
    config.kv_cache_bytes = PoolBytes(config, s.pool_tokens > 0 ? s.pool_tokens : small_pool);
    config.engine.max_step_seconds = s.step_seconds;
    config.engine.prefix_cache_share = s.share;
    const auto index = static_cast<int32_t>(&s - kSchedules);
    SCOPED_TRACE(index);
    config.engine.speculation = {index % 2 == 0 ? 0 : 2 + index, 3, 1};
    const auto [results, stats] = RunEngine(config, requests, s.gap, s.depth);
    accepted += stats.accepted_drafts;
    refused += stats.drafted_tokens - stats.accepted_drafts;
    ASSERT_EQ(results.size(), solo.size());
    for (const auto& [id, result] : results) {
      SCOPED_TRACE(id);
      const AcpStats &acp = result.stats.acp, &expected = solo.at(id).stats.acp;
      ExpectSameBits(id, result, solo.at(id));
      EXPECT_EQ(acp.max_log_evicted_mass, expected.max_log_evicted_mass);
      EXPECT_LE(acp.max_log_evicted_mass, -10);
      (s.pool_tokens > 0 ? preemptions : in_small_pool) += result.stats.preemptions;
      // Pages that were computed again count twice, and rows in a chunk with others.
      if (result.stats.preemptions > 0) continue;
      EXPECT_EQ(acp.answer_lost.max_log, expected.answer_lost.max_log);
      EXPECT_DOUBLE_EQ(acp.answer_lost.sum, expected.answer_lost.sum);
      EXPECT_EQ(acp.pages_evicted, expected.pages_evicted);
      EXPECT_EQ(acp.pages_allocated, expected.pages_allocated);
    }
  }
  // Without eviction 448 tokens are too few; with it the heads may forget fast enough.
  if (model.acp == AcpMode::kOff) {
    EXPECT_GT(preemptions, 0);
  }
  EXPECT_GE(in_small_pool, small_pool > 0 ? 3 : 0);
  EXPECT_GT(accepted, 10);
  EXPECT_GT(refused, 10);
}

// Beside one without; its mask comes between two steps.
TEST(EnginePaceTest, ARowWithAGrammarDecodesInEveryStep) {
  const EngineConfig config = GoldenConfig(GoldenModel{"tiny_fla", "f32", 128});
  std::vector<Request> requests = {MakeRequests(128)[4], MakeRequests(128)[0]};
  ASSERT_NE(requests[0].grammar, nullptr);
  const int64_t steps = RunEngine(config, requests, 0, 2).stats.steps;
  requests[0].grammar = nullptr;
  EXPECT_EQ(steps, RunEngine(config, requests, 0, 2).stats.steps);
}

INSTANTIATE_TEST_SUITE_P(
    Models, EngineInvarianceTest,
    ::testing::Values(Variant{{"dev_pro_d64", "f32", 512}, 320},
                      Variant{{"dev_pro_d64", "bf16", 512}},
                      Variant{{"dev_pro_d64", "f32", 512, AcpMode::kOff}, 576},
                      Variant{{"dev_pro_d128", "f32", 300, AcpMode::kPaper}, 576},
                      Variant{{"tiny_fla", "f32", 128}, 576},
                      Variant{{"tiny_rope", "bf16", 128}, 512},
                      Variant{{"dev_llama_d64", "f32", 512}},
                      Variant{{"transformers/llama_kv1_default_tied_forgetting", "bf16", 64}}));

}  // namespace
}  // namespace fox
