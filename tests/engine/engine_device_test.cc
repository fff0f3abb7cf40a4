// The engine on a GPU: a request's tokens and the bits of their log-probabilities do not depend on
// graphs, overlapping kernels, other requests, chunks of prompts, small pools with preemption,
// or shared prefixes. Two steps are in flight, and the device samples the same tokens as
// the host's sampler.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <numeric>
#include <random>

#include "kernels/cuda/linear/gemm_kernels.h"
#include "kernels/cuda/linear/linear.h"
#include "models/grammar/grammar.h"
#include "tests/engine/eval/run_program.h"
#include "tests/engine/random_streams.h"

namespace fox {
namespace {

constexpr int32_t kWideVocabulary = 512;

EngineConfig BaseConfig(const std::string& model) {
  EngineConfig config = GoldenConfig(model);
  config.device = "cuda";
  config.runner.max_num_batched_tokens = 512;
  return config;
}

// A model of random weights, wider than the golden ones: each multiprocessor has work in every
// product and in decode attention.
EngineConfig WideConfig() {
  EngineConfig config = BaseConfig("");
  config.model_dir = TempPath("model");
  const Ran made = RunProgram(
      "fox-bench", {"make-model", "--out", config.model_dir, "--layers", "4", "--hidden-size",
                    "768", "--heads", "24", "--vocab-size", std::to_string(kWideVocabulary)});
  EXPECT_EQ(made.status, 0) << made.err;
  return config;
}

// Where the GPU is no Hopper, more decode rows than these choose products by their number; so do
// rows of logits, among which all of a prompt's may be.
int32_t Invariant(int32_t rows) {
  constexpr auto kMax = static_cast<int32_t>(cuda::LinearEngine::kMaxPassedRows);
  return cuda::HasClusterGemm() ? rows : std::min(rows, kMax);
}

// Greedy requests, and sampled ones between them.
std::vector<Request> MakeRequests(int count, int32_t vocab, uint64_t seed) {
  const auto letters = [vocab] {
    std::vector<std::string> tokens(static_cast<size_t>(vocab));
    for (size_t id = 0; id < tokens.size(); ++id) tokens[id] = static_cast<char>('a' + id % 26);
    return tokens;
  };
  const auto grammar =
      *GrammarCompiler(letters).Compile({GrammarSource::Kind::kRegex, "([a-m][n-z]){30}"});
  std::mt19937_64 rng(seed);
  std::vector<Request> requests;
  for (int i = 0; i < count; ++i) {
    Request request = RandomRequest(i, i % 5 == 2 ? 300 : 60, vocab, rng);
    request.sampling.temperature = i % 3 == 1 ? 0.9f : 0.0f;
    request.sampling.top_p = i % 3 == 1 ? 0.95f : 1.0f;
    request.sampling.logprobs = 2;
    // Some need the sampler of the host, some change their logits.
    if (i % 7 == 3) request.sampling.logprob_token_ids = {0};
    if (i % 2 == 0) request.sampling.presence_penalty = 0.5f;
    if (i % 4 == 1) request.sampling.repetition_penalty = 1.2f;
    if (i % 4 == 3) request.sampling.frequency_penalty = 0.3f;
    if (i % 6 == 4) request.grammar = grammar;
    if (i % 5 == 1) request.sampling.logit_bias = {{0, -1.0f}, {5, 0.5f}};
    requests.push_back(std::move(request));
  }
  return requests;
}

StreamResults RunAll(const EngineConfig& config, const std::vector<Request>& requests, int gap,
                     EngineStats* stats = nullptr) {
  auto loaded = LoadEngine(config);
  EXPECT_TRUE(loaded.ok()) << loaded.status();
  if (!loaded.ok()) return {};
  auto& runner = static_cast<ModelRunner&>(*loaded->executor);
  StreamResults results = RunStreams(*loaded->engine, runner, requests, gap, 50);
  if (stats != nullptr) *stats = loaded->engine->stats();
  return results;
}

// Results that gpu-bench copies into its report.
struct Judged {
  bool graphs_equal = true;
  int64_t tokens_lost = 0;
  bool schedules_ran = false;
  int64_t requests_differ = 0;  // in a token or a bit of its log-probability, between schedules
} judged;

class ReportOfJudged : public ::testing::Environment {
 public:
  void TearDown() override {
    std::printf("[judged] graphs_equal %d\n[judged] tokens_lost %lld\n",
                judged.graphs_equal ? 1 : 0, static_cast<long long>(judged.tokens_lost));
    if (!judged.schedules_ran) return;
    std::printf("[judged] requests_differ %lld\n", static_cast<long long>(judged.requests_differ));
  }
};
const auto* const kReport = ::testing::AddGlobalTestEnvironment(new ReportOfJudged);

// Expects equal tokens and equal bits of their log-probabilities.
void ExpectSameBits(const StreamResults& got, const StreamResults& want) {
  ASSERT_EQ(got.size(), want.size());
  for (const auto& [id, result] : want) {
    SCOPED_TRACE(id);
    const StreamResult& other = got.at(id);
    ExpectSameBits(id, other, result);
    EXPECT_LE(other.stats.acp.max_log_evicted_mass, -10);
  }
}

// Between two schedules.
void ExpectNobodySees(const StreamResults& got, const StreamResults& want) {
  ExpectSameBits(got, want);
  judged.schedules_ran = true;
  for (const auto& [id, result] : want) {
    const StreamResult& other = got.at(id);
    judged.tokens_lost += std::abs(static_cast<int64_t>(other.tokens.size()) -
                                   static_cast<int64_t>(result.tokens.size()));
    judged.requests_differ += SameBits(other, result) ? 0 : 1;
  }
}

struct DeviceVariant {
  const char* model;
  int32_t vocab;
  AcpMode acp;
};

class DeviceEngineTest : public ::testing::TestWithParam<DeviceVariant> {
 protected:
  static EngineConfig Config() {
    EngineConfig config = BaseConfig(GetParam().model);
    config.runner.acp = GetParam().acp;
    return config;
  }
};

TEST_P(DeviceEngineTest, GraphsChangeNoBit) {
  const std::vector<Request> requests = MakeRequests(9, GetParam().vocab, 41);
  EngineConfig config = Config();
  const StreamResults graphs = RunAll(config, requests, 2);
  config.runner.enforce_eager = true;
  const StreamResults eager = RunAll(config, requests, 2);
  ExpectSameBits(graphs, eager);
  for (const auto& [id, result] : graphs) judged.graphs_equal &= Ids(result) == Ids(eager.at(id));
}

// Kernels that run one after another, against kernels that begin while earlier ones still run:
// small and larger batches and chunks of prompts, with graphs and without.
TEST_P(DeviceEngineTest, OverlapChangesNoBit) {
  const std::vector<Request> requests = MakeRequests(9, GetParam().vocab, 44);
  EngineConfig config = Config();
  config.runner.poison_free_pages = true;
  for (const int32_t seqs : {2, 16}) {
    config.runner.max_num_seqs = seqs;
    for (const bool eager : {false, true}) {
      config.runner.enforce_eager = eager;
      config.overlap_kernels = true;
      const StreamResults overlapping = RunAll(config, requests, 2);
      config.overlap_kernels = false;
      ExpectSameBits(overlapping, RunAll(config, requests, 2));
    }
  }
}

// All at once, each kernel after the one before has ended, against kernels that begin while earlier
// ones run: alone, again, and in batches that shrink from up to 64 sequences to one.
TEST(WideDeviceEngineTest, OverlapAndNeighboursChangeNoBit) {
  EngineConfig config = WideConfig();
  std::vector<Request> requests = MakeRequests(64, kWideVocabulary, 49);
  for (Request& request : requests) {
    request.stop.max_tokens = static_cast<int32_t>(40 + 2 * request.id);
  }
  config.runner.max_num_seqs = Invariant(64);
  config.overlap_kernels = false;
  const StreamResults together = RunAll(config, requests, 0);
  config.overlap_kernels = true;
  for (const int32_t seqs : {1, 1, 4, 5, 17, Invariant(64)}) {
    SCOPED_TRACE(seqs);
    config.runner.max_num_seqs = seqs;
    ExpectNobodySees(RunAll(config, requests, 0), together);
  }
  std::filesystem::remove_all(config.model_dir);
}

// A broken promise of the scheduler's is reported with the step's results.
TEST_P(DeviceEngineTest, AnOverdrawnPoolIsUnavailable) {
  EngineConfig config = Config();
  config.kv_cache_bytes = PoolBytes(config, kPageTokens);
  auto runner = LoadRunner(config);
  ASSERT_TRUE(runner.ok()) << runner.status();
  StepPlan plan;
  PlannedSequence& sequence = plan.sequences.emplace_back();
  sequence.slot = 0;
  sequence.log_tolerance = -10;
  sequence.token_ids.assign(200, 1);
  sequence.logit_rows = {199};
  ASSERT_TRUE((*runner)->Submit(plan).ok());
  EXPECT_EQ((*runner)->Collect().status(),
            absl::UnavailableError("page pool: a step took more pages than were free"));
}

struct DeviceSchedule {
  int32_t seqs;
  int64_t batch_tokens;
  int64_t pool_tokens;  // unpruned tokens the pool holds
  int gap;
};

TEST_P(DeviceEngineTest, SchedulesChangeNoBit) {
  std::vector<Request> requests = MakeRequests(12, GetParam().vocab, 42);
  // Answers that are longer than expected.
  for (size_t i = 0; i < requests.size(); ++i) {
    requests[i].stop.max_tokens = 150 + 30 * static_cast<int32_t>(i % 7);
  }
  if (Invariant(128) == 128) requests[5].sampling.prompt_logprobs = 1;
  EngineConfig config = Config();
  config.runner.max_num_seqs = 1;
  const StreamResults solo = RunAll(config, requests, 0);
  int64_t preemptions = 0;
  for (const DeviceSchedule& s :
       {DeviceSchedule{16, 512, 16384, 0}, DeviceSchedule{3, 132, 8192, 3},
        DeviceSchedule{8, 512, 576, 0}, DeviceSchedule{16, 145, 576, 2}}) {
    config.runner.max_num_seqs = s.seqs;
    config.runner.max_num_batched_tokens = s.batch_tokens;
    EngineConfig small = config;
    small.kv_cache_bytes = PoolBytes(config, s.pool_tokens);
    const StreamResults results = RunAll(small, requests, s.gap);
    ExpectNobodySees(results, solo);
    for (const auto& [id, result] : results) preemptions += result.stats.preemptions;
  }
  if (GetParam().acp == AcpMode::kOff) {
    EXPECT_GT(preemptions, 0);
  }
}

// With drafts, of which some are right, and without; with graphs and without, in batches of few
// rows and of many, among requests without drafts and chunks of prompts, in a small pool.
TEST_P(DeviceEngineTest, DraftsChangeNoBit) {
  std::vector<Request> requests = MakeRequests(12, GetParam().vocab, 50);
  for (size_t i = 0; i < requests.size(); ++i) {
    requests[i].stop.max_tokens = 150 + 30 * static_cast<int32_t>(i % 7);
    const bool repeats = i % 4 == 0 && requests[i].grammar == nullptr;
    if (repeats) requests[i].sampling.allowed_token_ids = {3, 9, 11};
    if (i % 4 == 3) continue;
    requests[i].sampling.presence_penalty = requests[i].sampling.frequency_penalty = 0;
    requests[i].sampling.repetition_penalty = 1;
    requests[i].sampling.logit_bias.clear();
  }
  EngineConfig config = Config();
  config.runner.max_num_seqs = 1;
  const StreamResults solo = RunAll(config, requests, 0);
  int64_t accepted = 0, refused = 0;
  for (const DeviceSchedule& s :
       {DeviceSchedule{4, 512, 16384, 40}, DeviceSchedule{16, 512, 16384, 200},
        DeviceSchedule{32, 160, 16384, 3}, DeviceSchedule{8, 512, 576, 0}}) {
    config.runner.max_num_seqs = s.seqs;
    config.runner.max_num_batched_tokens = s.batch_tokens;
    config.runner.enforce_eager = s.gap == 3;
    config.runner.poison_free_pages = true;
    config.engine.speculation = {s.seqs == 4 ? 3 : 14, 3, 1};
    EngineConfig some = config;
    some.kv_cache_bytes = PoolBytes(config, s.pool_tokens);
    EngineStats stats;
    ExpectNobodySees(RunAll(some, requests, s.gap, &stats), solo);
    accepted += stats.accepted_drafts;
    refused += stats.drafted_tokens - stats.accepted_drafts;
  }
  EXPECT_GT(accepted, 20);
  EXPECT_GT(refused, 20);
}

// Prompts of all lengths around the ends of chunks, in chunks beside decodes of others.
TEST_P(DeviceEngineTest, ChunksBesideDecodesChangeNoBit) {
  std::vector<Request> requests = MakeRequests(14, GetParam().vocab, 47);
  std::mt19937_64 rng(47);
  const size_t lengths[] = {700, 1, 129, 2, 257, 128, 3, 385, 127, 641, 130, 256, 64, 600};
  for (size_t i = 0; i < requests.size(); ++i) {
    requests[i].prompt.resize(lengths[i]);
    for (int32_t& token : requests[i].prompt) {
      token = static_cast<int32_t>(rng() % static_cast<uint64_t>(GetParam().vocab));
    }
    requests[i].stop.max_tokens = 40 + 20 * static_cast<int32_t>(i % 4);
  }
  if (Invariant(128) == 128) {
    requests[7].sampling.prompt_logprobs = requests[8].sampling.prompt_logprobs = 0;
  }
  EngineConfig config = Config();
  config.runner.max_num_seqs = 1;
  config.runner.max_num_batched_tokens = 1024;
  const StreamResults solo = RunAll(config, requests, 0);
  for (const DeviceSchedule& s :
       {DeviceSchedule{14, 143, 16384, 1}, DeviceSchedule{5, 300, 16384, 4},
        DeviceSchedule{14, 1024, 16384, 3}, DeviceSchedule{7, 260, 1024, 0}}) {
    config.runner.max_num_seqs = s.seqs;
    config.runner.max_num_batched_tokens = s.batch_tokens;
    EngineConfig some = config;
    some.kv_cache_bytes = PoolBytes(config, s.pool_tokens);
    some.runner.enforce_eager = s.gap == 4;
    some.runner.poison_free_pages = true;
    ExpectNobodySees(RunAll(some, requests, s.gap), solo);
  }
}

// More decode rows than one pass of a product takes.
TEST_P(DeviceEngineTest, ALargeBatchChangesNoBit) {
  std::vector<Request> requests = MakeRequests(72, GetParam().vocab, 48);
  for (Request& request : requests) request.stop.max_tokens = 30;
  EngineConfig config = Config();
  config.runner.max_num_seqs = Invariant(72);
  const StreamResults together = RunAll(config, requests, 0);
  config.runner.max_num_seqs = 2;
  ExpectNobodySees(together, RunAll(config, requests, 0));
}

// A single row to score, as many as a slice has, and one more or less; alone and beside others.
TEST_P(DeviceEngineTest, ScoresOfAnyNumberOfRowsChangeNoBit) {
  std::vector<Request> requests = MakeRequests(11, GetParam().vocab, 52);
  std::mt19937_64 rng(52);
  const size_t lengths[] = {2, 3, 64, 129, 130, 131, 132, 258, 259, 260, 700};
  for (size_t i = 0; i < requests.size(); ++i) {
    requests[i].prompt.resize(lengths[i]);
    for (int32_t& token : requests[i].prompt) {
      token = static_cast<int32_t>(rng() % static_cast<uint64_t>(GetParam().vocab));
    }
    requests[i].sampling.logprob_token_ids.clear();
    requests[i].sampling.prompt_logprobs = static_cast<int32_t>(i % 3);
    requests[i].stop.max_tokens = i % 2 == 0 ? 0 : 5;
  }
  EngineConfig config = Config();
  config.runner.max_num_seqs = 1;  // slices of 129 rows
  const StreamResults solo = RunAll(config, requests, 0);
  for (const DeviceSchedule& s :
       {DeviceSchedule{1, 4096, 16384, 0}, DeviceSchedule{11, 4096, 16384, 0},
        DeviceSchedule{3, 300, 16384, 1}}) {
    config.runner.max_num_seqs = s.seqs;
    config.runner.max_num_batched_tokens = s.batch_tokens;
    const StreamResults results = RunAll(config, requests, s.gap);
    for (const Request& request : requests) {
      EXPECT_EQ(results.at(request.id).scores.size(), request.prompt.size() - 1) << request.id;
    }
    if (Invariant(128) == 128) ExpectNobodySees(results, solo);
  }
}

// Prompts that begin alike, some of them with a whole prompt before them, and samples of one.
std::vector<Request> MakeSharers(int count, int32_t vocab, uint64_t seed) {
  std::vector<Request> requests = MakeRequests(count, vocab, seed);
  std::mt19937_64 rng(seed);
  std::vector<int32_t> document(350);
  for (int32_t& token : document) {
    token = static_cast<int32_t>(rng() % static_cast<uint64_t>(vocab));
  }
  for (size_t i = 0; i < requests.size(); ++i) {
    const auto shared = static_cast<int64_t>(i % 3 == 0 ? document.size() : 64 * i % 350);
    requests[i].prompt.insert(requests[i].prompt.begin(), document.begin(),
                              document.begin() + shared);
  }
  return requests;
}

// Snapshots are taken, started from and dropped inside the steps; pages have several owners.
TEST_P(DeviceEngineTest, SharedPrefixesChangeNoBit) {
  const std::vector<Request> requests = MakeSharers(14, GetParam().vocab, 45);
  EngineConfig config = Config();
  config.engine.prefix_cache_interval = 128;
  config.engine.prefix_cache_share = 0;
  const StreamResults without = RunAll(config, requests, 0);
  config.engine.prefix_cache_share = 0.5;
  config.runner.poison_free_pages = true;
  int64_t cached = 0;
  for (const int64_t pool_tokens : {16384, 1536}) {
    for (const int gap : {0, 25}) {
      config.kv_cache_bytes = PoolBytes(config, pool_tokens);
      const StreamResults results = RunAll(config, requests, gap);
      ExpectNobodySees(results, without);
      for (const auto& [id, result] : results) cached += result.stats.cached_tokens;
    }
  }
  EXPECT_GT(cached, 0);
}

TEST_P(DeviceEngineTest, SamplesAreThoseOfTheHostsSampler) {
  std::vector<Request> on_device = MakeRequests(12, GetParam().vocab, 43);
  for (size_t i = 0; i < on_device.size(); ++i) {
    SamplingParams& sampling = on_device[i].sampling;
    sampling.logprob_token_ids.clear();
    if (i % 3 == 1) sampling.top_k = 20;
    if (on_device[i].grammar != nullptr) continue;  // takes neither allowed tokens nor min_tokens
    for (int32_t id = 0; i % 4 == 2 && id < GetParam().vocab; id += 3) {
      sampling.allowed_token_ids.push_back(id);
    }
    on_device[i].stop.min_tokens = 25;
    for (int32_t id = 0; id < GetParam().vocab; id += 10) {
      on_device[i].stop.stop_token_ids.push_back(id);
    }
  }
  std::vector<Request> sampled = on_device;
  for (Request& request : sampled) request.sampling.logprob_token_ids = {1};
  EngineConfig config = Config();
  config.runner.max_num_seqs = 1;  // the same logits in both runs, bit for bit
  const StreamResults device = RunAll(config, on_device, 0);
  const StreamResults host = RunAll(config, sampled, 0);
  ASSERT_EQ(device.size(), host.size());
  for (const auto& [id, result] : device) {
    SCOPED_TRACE(id);
    ASSERT_EQ(Ids(result), Ids(host.at(id))) << "request " << id;
    EXPECT_GE(result.tokens.size(), on_device[static_cast<size_t>(id)].grammar ? 1u : 25u);
    for (size_t i = 0; i < result.tokens.size(); ++i) {
      const SampledToken& a = result.tokens[i];
      const SampledToken& b = host.at(id).tokens[i];
      EXPECT_EQ(a.rank, b.rank) << "request " << id << " token " << i;
      // Sums of weights agree within 2^-21; float32 rounds each result.
      EXPECT_NEAR(a.logprob, b.logprob, 0x1p-21 + std::abs(b.logprob) * 0x1p-23)
          << "request " << id << " token " << i;
    }
  }
}

// The copy comes back with the step, though another one is in flight behind it.
TEST(DeviceWindowsTest, AreThoseOfTheCache) {
  auto runner = LoadRunner(BaseConfig("tiny_fla"));
  ASSERT_TRUE(runner.ok()) << runner.status();
  StepPlan plan;
  PlannedSequence& sequence = plan.sequences.emplace_back();
  sequence.slot = 1;
  sequence.log_tolerance = -0.01;
  sequence.token_ids.assign(5 * kPageTokens, 1);
  ASSERT_TRUE((*runner)->Submit(plan).ok());
  sequence.position = 5 * kPageTokens;
  plan.read_windows = true;
  ASSERT_TRUE((*runner)->Submit(plan).ok());
  absl::StatusOr<StepResult> result = (*runner)->Collect();
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->first_pages, nullptr);
  sequence.position = 10 * kPageTokens;  // after the plan with windows
  plan.read_windows = false;
  ASSERT_TRUE((*runner)->Submit(plan).ok());
  result = (*runner)->Collect();
  ASSERT_TRUE(result.ok());
  ASSERT_NE(result->first_pages, nullptr);
  const int32_t* const first = result->first_pages + (*runner)->limits().lists_per_slot;
  EXPECT_EQ(std::accumulate(first, first + (*runner)->limits().lists_per_slot, int64_t{0}),
            result->stats[0].pages_evicted);
  EXPECT_GT(result->stats[0].pages_evicted, 0);
}

TEST(DeviceLimitsTest, AreRefusedWithTheReason) {
  EngineConfig config = BaseConfig("tiny_fla");
  config.runner.max_num_seqs = 2049;
  EXPECT_EQ(LoadRunner(config).status(),
            absl::InvalidArgumentError("at most 2048 sequences at once on a GPU, not 2049"));
  config.runner.max_num_seqs = 4;
  config.runner.max_num_batched_tokens = (1 << 20) + 1;
  EXPECT_EQ(LoadRunner(config).status(),
            absl::InvalidArgumentError("at most 1048576 tokens in one step on a GPU, not 1048577"));
}

INSTANTIATE_TEST_SUITE_P(
    Models, DeviceEngineTest,
    ::testing::Values(DeviceVariant{"dev_pro_d64", 512, AcpMode::kCertified},
                      DeviceVariant{"dev_pro_d64", 512, AcpMode::kOff},
                      DeviceVariant{"dev_pro_d128", 300, AcpMode::kPaper},
                      DeviceVariant{"tiny_fla", 128, AcpMode::kCertified},
                      DeviceVariant{"dev_llama_d64", 512, AcpMode::kCertified}),
    [](const auto& test) { return std::string(test.param.model) + "_" + NameOf(test.param.acp); });

}  // namespace
}  // namespace fox
