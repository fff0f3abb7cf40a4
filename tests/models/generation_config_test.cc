// generation_config.json: what is read, and what is refused for its type.
#include "models/generation_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

namespace fox {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Optional;

TEST(GenerationConfigTest, TakesWhatItKnows) {
  const absl::StatusOr<GenerationConfig> config = ParseGenerationConfig(
      R"({"temperature": 0.5, "top_p": 1, "top_k": 50, "min_p": null, "max_new_tokens": 99,
          "eos_token_id": [2, 3], "do_sample": false, "x": {}})");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_THAT(config->temperature, Optional(0.5));
  EXPECT_THAT(config->top_p, Optional(1.0));
  EXPECT_THAT(config->top_k, Optional(50));
  EXPECT_THAT(config->max_new_tokens, Optional(99));
  EXPECT_EQ(config->min_p, std::nullopt);
  EXPECT_EQ(config->repetition_penalty, std::nullopt);
  EXPECT_THAT(config->eos_token_ids, ElementsAre(2, 3));
  EXPECT_THAT(ParseGenerationConfig("{\"eos_token_id\": 7}")->eos_token_ids, ElementsAre(7));
}

TEST(GenerationConfigTest, RefusalsNameTheKey) {
  const std::pair<std::string, const char*> cases[] = {
      {"{\"temperature\": \"hot\"}", "temperature"},
      {"{\"top_p\": true}", "top_p"},
      {"{\"top_k\": 1.5}", "top_k"},
      {"{\"top_k\": 18446744073709551615}", "top_k"},
      {"{\"eos_token_id\": [1, \"2\"]}", "eos_token_id"},
      {"{\"top_k\": 1, \"top_k\": 2}", "duplicate key \"top_k\""},
      {"[]", "JSON object"},
      {"{", "not valid JSON"},
      {"", "not valid JSON"},
      {std::string("{}\0garbage", 10), "NUL"},
  };
  for (const auto& [json, problem] : cases) {
    const absl::Status status = ParseGenerationConfig(json).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << json;
    EXPECT_THAT(std::string(status.message()), HasSubstr("generation_config.json")) << json;
    EXPECT_THAT(std::string(status.message()), HasSubstr(problem)) << json;
  }
}

TEST(GenerationConfigTest, AMissingFileSetsNothing) {
  const std::filesystem::path dir =
      std::filesystem::path(::testing::TempDir()) / "generation_config_test";
  std::filesystem::remove_all(dir);
  std::filesystem::create_directories(dir);
  EXPECT_EQ(LoadGenerationConfig(dir.string())->top_k, std::nullopt);
  std::ofstream(dir / "generation_config.json") << "{\"top_k\": 3}";
  EXPECT_THAT(LoadGenerationConfig(dir.string())->top_k, Optional(3));
  std::filesystem::remove(dir / "generation_config.json");
  std::filesystem::create_directory(dir / "generation_config.json");
  EXPECT_FALSE(LoadGenerationConfig(dir.string()).ok());
}

}  // namespace
}  // namespace fox
