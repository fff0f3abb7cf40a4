// Engine factory: settings refused before a file is opened, and the flags that the refusals name.
#include "engine/engine_factory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>

#include "tests/models/temporary_dir.h"

namespace fox {
namespace {

using ::testing::StartsWith;

absl::Status LoadWith(const std::function<void(EngineConfig&)>& change) {
  EngineConfig config;
  config.model_dir = "no-such-directory";
  change(config);
  return LoadEngine(config).status();
}

TEST(EngineFactoryTest, WrongValuesAreRefusedBeforeTheModelIsOpened) {
  const std::pair<const char*, std::function<void(EngineConfig&)>> cases[] = {
      {"--max-num-seqs", [](EngineConfig& c) { c.runner.max_num_seqs = -1; }},
      {"--max-num-batched-tokens", [](EngineConfig& c) { c.runner.max_num_batched_tokens = -1; }},
      {"--gpu-memory-utilization", [](EngineConfig& c) { c.gpu_memory_utilization = 0; }},
      {"--gpu-memory-utilization", [](EngineConfig& c) { c.gpu_memory_utilization = 1.01; }},
      {"--log-tolerance", [](EngineConfig& c) { c.log_tolerance = 0; }},
      {"--log-tolerance", [](EngineConfig& c) { c.log_tolerance = -HUGE_VAL; }},
      {"--log-tolerance", [](EngineConfig& c) { c.log_tolerance = NAN; }},
      {"--kv-cache-dtype",
       [](EngineConfig& c) {
         c.kv_cache_dtype = DType::kE4M3;
         c.dtype = "f64";
       }},
  };
  for (const auto& [flag, change] : cases) {
    SCOPED_TRACE(flag);
    const absl::Status status = LoadWith(change);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), StartsWith(flag));
  }
  EXPECT_EQ(LoadWith([](EngineConfig& c) { c.log_tolerance = -1e-9; }).code(),
            absl::StatusCode::kNotFound);
}

// The rounding budget of pruning holds up to 2^20 keys.
TEST(EngineFactoryTest, LengthsBeyondTheProofNeedPruningOff) {
  const auto load = [](AcpMode acp, int64_t length) {
    return LoadWith([&](EngineConfig& c) {
      c.model_dir = FOX_SOURCE_DIR "/models/demo";
      c.kv_cache_bytes = 1 << 20;
      c.runner.acp = acp;
      c.runner.max_model_len = length;
    });
  };
  constexpr int64_t kLongest = int64_t{1} << 20;
  for (const AcpMode acp : {AcpMode::kPaper, AcpMode::kCertified}) {
    SCOPED_TRACE(NameOf(acp));
    const absl::Status status = load(acp, kLongest + 1);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), StartsWith("--max-model-len 1048577 is above"));
    EXPECT_THAT(std::string(load(acp, kLongest).message()),
                ::testing::Not(::testing::HasSubstr("pruning is proved")));
  }
  EXPECT_THAT(std::string(load(AcpMode::kOff, kLongest + 1).message()),
              ::testing::Not(::testing::HasSubstr("pruning is proved")));
}

TEST(EngineFactoryTest, ThePapersBoundNeedsABoundOnLogits) {
  const auto load = [](AcpMode acp) {
    return LoadWith([&](EngineConfig& c) {
      c.model_dir = FOX_SOURCE_DIR "/tests/golden/dev_llama_d64";
      c.kv_cache_bytes = 1 << 24;
      c.runner.acp = acp;
    });
  };
  const absl::Status status = load(AcpMode::kPaper);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("use --acp certified"));
  for (const AcpMode acp : {AcpMode::kOff, AcpMode::kCertified}) {
    EXPECT_EQ(load(acp), absl::OkStatus()) << NameOf(acp);
  }
}

// Unless something else is asked for, weights stay in the blocks that a GGUF file had.
TEST(EngineFactoryTest, AConvertedGgufFileKeepsItsBlocks) {
  const std::filesystem::path golden = FOX_SOURCE_DIR "/tests/golden/dev_llama_d64";
  const TemporaryDir dir;
  const std::pair<const char*, std::pair<std::function<void(EngineConfig&)>, const char*>> cases[] =
      {{"", {[](EngineConfig&) {}, ""}},
       {"q8", {[](EngineConfig&) {}, "q8"}},
       {"q4", {[](EngineConfig&) {}, "q4"}},
       {"q4", {[](EngineConfig& c) { c.quantization = Quantization::kNone; }, ""}},
       {"q4", {[](EngineConfig& c) { c.quantization = Quantization::kQ8; }, "q8"}},
       {"q8", {[](EngineConfig& c) { c.dtype = "f32"; }, "f32"}},
       {"q8", {[](EngineConfig& c) { c.allow_nonfinite = true; }, ""}}};
  std::string of_this_cpu;
  for (const auto& [blocks, asked] : cases) {
    const std::filesystem::path model = std::filesystem::path(dir.path()) / "model";
    std::filesystem::remove_all(model);
    std::filesystem::copy(golden, model, std::filesystem::copy_options::recursive);
    auto keys = nlohmann::json::parse(std::ifstream(golden / "config.json"));
    if (*blocks != '\0') keys["weight_blocks"] = blocks;
    std::ofstream(model / "config.json") << keys;
    EngineConfig config;
    config.model_dir = model;
    config.kv_cache_bytes = 1 << 24;
    config.quantization.reset();
    asked.first(config);
    const absl::StatusOr<LoadedEngine> loaded = LoadEngine(config);
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    if (*blocks == '\0') of_this_cpu = loaded->dtype;
    EXPECT_EQ(loaded->dtype, *asked.second == '\0' ? of_this_cpu : asked.second) << blocks;
  }
}

TEST(EngineFactoryTest, AHostWithoutMemoryIsToldByTheFlagThatTakesIt) {
  const absl::Status status = LoadWith([](EngineConfig& c) {
    c.model_dir = FOX_SOURCE_DIR "/tests/golden/dev_llama_d64";
    c.host_bytes_beside = int64_t{1} << 60;
  });
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), StartsWith("--call-memory-mb: "));
}

TEST(EngineFactoryTest, StepSizesLetEverySequenceDecode) {
  RunnerOptions options;
  options.max_num_seqs = 600;
  EXPECT_EQ(WithStepSizes(options, false).max_num_batched_tokens, 600);
  EXPECT_EQ(WithStepSizes(options, true).max_num_batched_tokens, 8192);
  EXPECT_EQ(WithStepSizes(options, false).max_logit_rows, 600);
  options.max_num_seqs = 2;
  EXPECT_EQ(WithStepSizes(options, false).max_num_batched_tokens, 512);
  EXPECT_EQ(WithStepSizes(options, false).max_logit_rows, 128);
  options.max_num_batched_tokens = 33;
  EXPECT_EQ(WithStepSizes(options, false).max_num_batched_tokens, 33);
}

// A chunk of 129 tokens, each with a row of logits, beside all others.
TEST(EngineFactoryTest, StepSizesOnAGpuLetAPromptGoOnBesideDecodes) {
  RunnerOptions options;
  options.max_num_seqs = 40;
  EXPECT_EQ(WithStepSizes(options, true).max_logit_rows, 39 + 129);
  EXPECT_EQ(WithStepSizes(options, true).prefill_tokens_per_decode, 96);
  EXPECT_EQ(WithStepSizes(options, false).prefill_tokens_per_decode, 0);
  options.max_num_batched_tokens = 33;
  options.prefill_tokens_per_decode = 0;
  EXPECT_EQ(WithStepSizes(options, true).max_num_batched_tokens, 39 + 129);
  EXPECT_EQ(WithStepSizes(options, true).prefill_tokens_per_decode, 0);
}

}  // namespace
}  // namespace fox
