// generation_config.json: what is taken, what is refused.
#include "server/sampling_defaults.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

namespace fox {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(SamplingDefaultsTest, TakesWhatItKnows) {
  absl::StatusOr<SamplingDefaults> defaults = ParseGenerationConfig(
      R"({"temperature": 0.5, "top_p": 0.9, "top_k": 50, "min_p": null, "max_new_tokens": 99,
          "repetition_penalty": 1.5, "eos_token_id": [2, 3], "do_sample": false, "x": {}})",
      100);
  ASSERT_TRUE(defaults.ok()) << defaults.status();
  EXPECT_FLOAT_EQ(defaults->temperature, 0.5f);
  EXPECT_FLOAT_EQ(defaults->top_p, 0.9f);
  EXPECT_EQ(defaults->top_k, 50u);
  EXPECT_EQ(defaults->min_p, 0.0f);
  EXPECT_EQ(defaults->max_tokens, 99u);
  EXPECT_FLOAT_EQ(defaults->repetition_penalty, 1.5f);
  EXPECT_THAT(defaults->eos_token_ids, ElementsAre(2, 3));
  EXPECT_THAT(ToJson(*defaults), HasSubstr("\"top_k\":50"));
}

TEST(SamplingDefaultsTest, RefusalsNameTheKey) {
  const std::pair<const char*, const char*> cases[] = {
      {"{\"temperature\": -1}", "temperature"},
      {"{\"temperature\": \"hot\"}", "temperature"},
      {"{\"top_p\": 0}", "top_p"},
      {"{\"min_p\": 1.1}", "min_p"},
      {"{\"repetition_penalty\": 0}", "repetition_penalty"},
      {"{\"top_k\": -1}", "top_k"},
      {"{\"top_k\": 1.5}", "top_k"},
      {"{\"max_new_tokens\": 0}", "max_new_tokens"},
      {"{\"eos_token_id\": 100}", "eos_token_id"},
      {"{\"eos_token_id\": [1, \"2\"]}", "eos_token_id"},
      {"[]", "JSON object"},
      {"{", "JSON object"},
      {"", "JSON object"},
  };
  for (const auto& [json, key] : cases) {
    const absl::Status status = ParseGenerationConfig(json, 100).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << json;
    EXPECT_THAT(std::string(status.message()), HasSubstr(key)) << json;
  }
}

TEST(SamplingDefaultsTest, AMissingFileMeansTheBuiltInOnes) {
  const std::filesystem::path dir =
      std::filesystem::path(::testing::TempDir()) / "sampling_defaults_test";
  std::filesystem::remove_all(dir);
  std::filesystem::create_directories(dir);
  EXPECT_EQ(LoadSamplingDefaults(dir.string(), 100)->max_tokens, 256u);
  std::ofstream(dir / "generation_config.json") << "{\"top_k\": 3}";
  EXPECT_EQ(LoadSamplingDefaults(dir.string(), 100)->top_k, 3u);
  std::filesystem::remove(dir / "generation_config.json");
  std::filesystem::create_directory(dir / "generation_config.json");
  EXPECT_FALSE(LoadSamplingDefaults(dir.string(), 100).ok());
}

}  // namespace
}  // namespace fox
