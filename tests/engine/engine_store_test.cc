// The prefix cache with its store of files over a real model: after a restart the same bits, from
// the files or without them, whatever has happened to these.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <limits>
#include <set>
#include <string>
#include <thread>

#include "engine/base/steady_clock.h"
#include "tests/engine/random_streams.h"
#include "tests/models/temporary_dir.h"

namespace fox {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMinTokens = 128;

// Built twice: with FOX_TEST_DEVICE "cuda", what applies to a GPU runs there.
#ifndef FOX_TEST_DEVICE
#define FOX_TEST_DEVICE "cpu"
#endif
bool OnGpu() { return std::string(FOX_TEST_DEVICE) == "cuda"; }

EngineConfig Config(const GoldenModel& model, const std::string& dir) {
  EngineConfig config = GoldenConfig(model);
  config.device = FOX_TEST_DEVICE;
  config.engine.prefix_cache_share = 0.5;
  config.engine.prefix_cache_interval = 128;
  config.engine.min_stored_tokens = kMinTokens;
  config.prefix_store.dir = dir;
  config.prefix_store.max_gb = 1000;
  config.kv_cache_bytes = int64_t{16} << 20;
  return config;
}

struct Life {
  StreamResults results;
  EngineStats stats;
  StoreStats store;
};

// A server from its start to its drain: the requests, one after the other, then SavePrefixCache.
// `saves_each`: all snapshots of a request are written before the next one comes.
Life Live(const EngineConfig& config, const std::vector<Request>& requests,
          bool saves_each = false) {
  Life life;
  auto loaded = LoadEngine(config);
  EXPECT_TRUE(loaded.ok()) << loaded.status();
  if (!loaded.ok()) return life;
  Engine& engine = *loaded->engine;
  const auto step = [&] {
    const bool works = engine.HasWork() || engine.NextDeadline() <= SteadySeconds();
    if (!works) std::this_thread::sleep_for(std::chrono::microseconds(200));
    AddOutputs(engine.Step(SteadySeconds()), &life.results);
    engine.Check();
  };
  const auto save = [&] {
    engine.SavePrefixCache();
    while (engine.stats().snapshots_unsaved > 0) step();
  };
  for (const Request& request : requests) {
    SCOPED_TRACE(request.id);
    EXPECT_TRUE(engine.Submit(request, SteadySeconds()).ok());
    while (engine.stats().running + engine.stats().waiting > 0) step();
    if (saves_each) save();
  }
  save();
  life.stats = engine.stats();
  if (engine.store() != nullptr) life.store = engine.store()->stats();
  return life;
}

std::vector<Request> Requests(const GoldenModel& model) {
  std::mt19937_64 rng(3);
  std::vector<Request> requests;
  const auto text = RandomTokens(600, model.vocab, rng);
  for (const size_t length : {600u, 450u, 333u}) {
    Request& request = requests.emplace_back();
    request.id = requests.size();
    request.prompt.assign(text.begin(), text.begin() + static_cast<int64_t>(length));
    const auto own = RandomTokens(20, model.vocab, rng);
    request.prompt.insert(request.prompt.end(), own.begin(), own.end());
    request.sampling.temperature = length == 450 ? 0.8F : 0;
    request.sampling.logprobs = 3;
    request.sampling.seed = 7;
    request.stop.max_tokens = 40;
    request.stop.ignore_eos = true;
  }
  requests.push_back(requests[0]);
  requests.back().id = 4;
  requests.back().cache_salt = "of another";
  requests.push_back(requests[0]);
  requests.back().id = 5;
  requests.back().log_tolerance = -std::numeric_limits<double>::infinity();
  return requests;
}

// Expects the same tokens, log-probabilities and certificates.
void ExpectSame(const StreamResults& got, const StreamResults& want) {
  ASSERT_EQ(got.size(), want.size());
  for (const auto& [id, result] : got) {
    const StreamResult& expected = want.at(id);
    ExpectSameBits(id, result, expected);
    EXPECT_EQ(result.stats.acp.max_log_evicted_mass, expected.stats.acp.max_log_evicted_mass) << id;
    EXPECT_EQ(result.stats.acp.pages_allocated, expected.stats.acp.pages_allocated) << id;
    EXPECT_EQ(result.stats.acp.pages_evicted, expected.stats.acp.pages_evicted) << id;
  }
}

int64_t CachedTokens(const Life& life) {
  int64_t tokens = 0;
  for (const auto& [id, result] : life.results) tokens += result.stats.cached_tokens;
  return tokens;
}

std::vector<fs::path> Files(const TemporaryDir& dir) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(dir.path())) {
    if (entry.path().extension() == ".snapshot") files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

class EngineStoreTest : public ::testing::TestWithParam<GoldenModel> {};

TEST_P(EngineStoreTest, ARestartForgetsNothing) {
  const GoldenModel& model = GetParam();
  const TemporaryDir dir;
  const std::vector<Request> requests = Requests(model);
  EngineConfig without = Config(model, "");
  without.engine.prefix_cache_share = 0;
  const Life alone = Live(without, requests);
  const Life first = Live(Config(model, dir.path()), requests);
  ExpectSame(first.results, alone.results);
  EXPECT_GT(first.store.saved, 3);
  EXPECT_EQ(first.store.files, static_cast<int64_t>(Files(dir).size()));
  EXPECT_EQ(first.stats.snapshots_landed, 0);
  const Life second = Live(Config(model, dir.path()), requests);
  ExpectSame(second.results, alone.results);
  EXPECT_GT(second.stats.snapshots_landed, 2);
  // In a namespace of its own each of the last two starts as the first one does. Without pruning
  // there is one tolerance.
  for (const RequestId id : std::array<RequestId, 3>{1, 4, 5}) {
    if (model.acp == AcpMode::kOff && id == 5) continue;
    EXPECT_GE(second.results.at(id).stats.cached_tokens, 512) << id;
    EXPECT_EQ(first.results.at(id).stats.cached_tokens, 0) << id;
  }
  EXPECT_EQ(second.store.errors, 0);
  EXPECT_EQ(second.store.saved, 0);  // nothing is written twice
}

std::vector<GoldenModel> Models() {
  if (OnGpu()) {
    return {{"dev_pro_d64", "bf16", 512},
            {"dev_pro_d128", "bf16", 300, AcpMode::kPaper},
            {"dev_pro_d64", "bf16", 512, AcpMode::kOff}};
  }
  return {{"dev_pro_d64", "f32", 512},
          {"dev_pro_d128", "f32", 300, AcpMode::kPaper},
          {"tiny_fla", "f64", 128},
          {"tiny_fla", "f32", 128, AcpMode::kOff},
          {"tiny_rope", "bf16", 128}};
}

INSTANTIATE_TEST_SUITE_P(Models, EngineStoreTest, ::testing::ValuesIn(Models()));

const GoldenModel kModel =
    OnGpu() ? GoldenModel{"dev_pro_d64", "bf16", 512} : GoldenModel{"tiny_fla", "f32", 128};

TEST(EngineStoreTest, WhateverHappenedToTheFiles) {
  const std::vector<Request> requests = Requests(kModel);
  const TemporaryDir dir;
  const Life first = Live(Config(kModel, dir.path()), requests);
  std::map<fs::path, std::string> whole;
  for (const fs::path& path : Files(dir)) whole[path] = FileContent(path);
  ASSERT_GT(whole.size(), 3u);
  std::mt19937_64 rng(11);
  const std::pair<const char*, std::function<void(std::string*)>> damages[] = {
      {"a bit", [&rng](std::string* file) { (*file)[rng() % file->size()] ^= 4; }},
      {"a bit of the header", [&rng](std::string* file) { (*file)[rng() % 200] ^= 1; }},
      {"its last bit", [](std::string* file) { file->back() ^= 1; }},
      {"truncated", [&rng](std::string* file) { file->resize(rng() % file->size()); }},
      {"zeros", [](std::string* file) { std::fill(file->begin() + 300, file->end(), '\0'); }},
      {"empty", [](std::string* file) { file->clear(); }},
      {"another's",
       [&whole](std::string* file) {
         const std::string mine = *file;
         for (const auto& [path, other] : whole) {
           if (other != mine) *file = other;
         }
       }},
  };
  for (const auto& [name, damage] : damages) {
    SCOPED_TRACE(name);
    for (const fs::path& path : Files(dir)) fs::remove(path);
    for (auto [path, content] : whole) {
      damage(&content);
      std::ofstream(path, std::ios::binary) << content;
    }
    const Life life = Live(Config(kModel, dir.path()), requests);
    ExpectSame(life.results, first.results);
    EXPECT_EQ(life.stats.snapshots_landed, 0);
    EXPECT_EQ(CachedTokens(life), CachedTokens(first));
    EXPECT_GT(life.store.errors, 0);
    EXPECT_GT(life.store.saved, 3);  // the files are made again
    const Life again = Live(Config(kModel, dir.path()), requests);
    ExpectSame(again.results, first.results);
    EXPECT_GT(again.stats.snapshots_landed, 2);
  }
}

// What computes other bits, or may, does not find the files.
TEST(EngineStoreTest, AnotherServersFilesAreNotFound) {
  const std::vector<Request> requests = {Requests(kModel)[0]};
  const TemporaryDir dir;
  Live(Config(kModel, dir.path()), requests);
  const std::pair<const char*, std::function<void(EngineConfig*)>> cases[] = {
      {"dtype", [](EngineConfig* config) { config->dtype = "bf16"; }},
      {"pages", [](EngineConfig* config) { config->kv_cache_dtype = DType::kE4M3; }},
      {"quantization", [](EngineConfig* config) { config->quantization = Quantization::kFp8; }},
      {"products", [](EngineConfig* config) { config->plain_gemm = false; }},
      {"pruning", [](EngineConfig* config) { config->runner.acp = AcpMode::kOff; }},
      {"tolerance", [](EngineConfig* config) { config->log_tolerance = -12; }},
      {"drafts", [](EngineConfig* config) { config->engine.speculation.tokens = 3; }},
      {"threads", [](EngineConfig* config) { config->threads = 1; }},
      {"program", [](EngineConfig* config) { config->prefix_store.version = "2"; }},
      {"model",
       [](EngineConfig* config) {
         config->model_dir = std::string(FOX_SOURCE_DIR) + "/tests/golden/" +
                             (OnGpu() ? "dev_llama_d64" : "tiny_rope");
       }},
  };
  EngineConfig same = Config(kModel, dir.path());
  same.threads = 2;
  Live(same, requests);
  for (const auto& [name, change] : cases) {
    SCOPED_TRACE(name);
    const bool of_the_cpu = std::set<std::string>{"dtype", "products", "threads"}.count(name) > 0;
    if (OnGpu() && of_the_cpu) continue;
    EngineConfig config = same;
    change(&config);
    const Life life = Live(config, requests);
    EXPECT_EQ(life.stats.snapshots_landed, 0);
    EXPECT_EQ(life.store.errors, 0);
  }
  // The sizes of pool and steps may change.
  same.kv_cache_bytes *= 2;
  same.runner.max_num_seqs = 3;
  same.runner.max_num_batched_tokens = 100;
  EXPECT_EQ(Live(same, requests).stats.snapshots_landed, 1);
}

// Snapshots that are dropped for room come back from their files, while requests run.
TEST(EngineStoreTest, DroppedSnapshotsComeBack) {
  const TemporaryDir dir;
  EngineConfig config = Config({kModel.name, kModel.dtype, 128, AcpMode::kOff}, dir.path());
  config.kv_cache_bytes = PoolBytes(Config(kModel, ""), 1536);
  std::mt19937_64 rng(4);
  std::vector<Request> requests;
  for (int i = 0; i < 6; ++i) {
    Request request;
    request.prompt = RandomTokens(400, 128, rng);
    request.sampling.temperature = 0;
    request.sampling.logprobs = 0;
    request.stop.max_tokens = 8;
    request.stop.ignore_eos = true;
    requests.push_back(request);
  }
  const std::vector<Request> once = requests;
  requests.insert(requests.end(), once.begin(), once.end());
  for (size_t i = 0; i < requests.size(); ++i) requests[i].id = i + 1;
  const Life life = Live(config, requests, /*saves_each=*/true);
  EXPECT_GT(life.stats.snapshots_dropped, 4);
  EXPECT_GE(life.stats.snapshots_landed, 6);
  for (RequestId id = 1; id <= 6; ++id) {
    ExpectSameBits(id, life.results.at(id + 6), life.results.at(id));
  }
}

// A request that goes while its file is read leaves a cache that answers with the same bits.
TEST(EngineStoreTest, ARequestGoesWhileItsFileIsRead) {
  const TemporaryDir dir;
  Request request = Requests(kModel)[0];
  const Life first = Live(Config(kModel, dir.path()), {request});
  for (int steps = 0; steps < 4; ++steps) {
    SCOPED_TRACE(steps);
    auto loaded = LoadEngine(Config(kModel, dir.path()));
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    Engine& engine = *loaded->engine;
    request.id = 2;
    ASSERT_TRUE(engine.Submit(request, SteadySeconds()).ok());
    for (int i = 0; i < steps; ++i) engine.Step(SteadySeconds());
    engine.Cancel(2, absl::CancelledError("gone"));
    while (engine.HasWork()) engine.Step(SteadySeconds());
    EXPECT_EQ(engine.stats().running + engine.stats().waiting, 0);
    request.id = 1;
    ASSERT_TRUE(engine.Submit(request, SteadySeconds()).ok());
    StreamResults results;
    while (engine.stats().running + engine.stats().waiting > 0) {
      AddOutputs(engine.Step(SteadySeconds()), &results);
      engine.Check();
    }
    ExpectSameBits(1, results.at(1), first.results.at(1));
    EXPECT_GT(results.at(1).stats.cached_tokens, 0);
    EXPECT_EQ(engine.store()->stats().errors, 0);
  }
}

TEST(EngineStoreTest, ABadDirectoryIsRefusedInOneLine) {
  EngineConfig config = Config(kModel, "/proc/no-such/cache");
  EXPECT_EQ(LoadEngine(config).status(),
            absl::InvalidArgumentError(
                "--prefix-cache-dir: /proc/no-such/cache: No such file or directory"));
  const TemporaryDir dir;
  config = Config(kModel, dir.path());
  const auto first = LoadEngine(config);
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(LoadEngine(config).status(),
            absl::InvalidArgumentError("--prefix-cache-dir: " + dir.path() +
                                       ": another server uses this directory"));
  config.engine.prefix_cache_share = 0;
  EXPECT_EQ(LoadEngine(config).status(),
            absl::InvalidArgumentError(
                "--prefix-cache-dir: there is no prefix cache: --prefix-cache-share is 0"));
}

}  // namespace
}  // namespace fox
