// generation_config.json and fox_gain.json: the keys that are read, and refusals of values of the
// wrong type.
#include "models/checkpoint/generation_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "tests/models/refused.h"
#include "tests/models/temporary_dir.h"

namespace fox {
namespace {

using ::testing::ElementsAre;
using ::testing::Optional;

TEST(GenerationConfigTest, ReadsKnownKeysAndIgnoresOthers) {
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
      {"[]", "JSON object"},
      {"", "not valid JSON"},
      {std::string("{}\0garbage", 10), "NUL"},
  };
  for (const auto& [json, problem] : cases) {
    ExpectRefused(ParseGenerationConfig(json).status(), problem);
    ExpectRefused(ParseGenerationConfig(json).status(), "generation_config.json");
  }
}

TEST(GenerationConfigTest, AMissingFileSetsNothing) {
  const TemporaryDir dir;
  EXPECT_EQ(LoadGenerationConfig(dir.path())->top_k, std::nullopt);
  dir.Write("generation_config.json", "{\"top_k\": 3}");
  EXPECT_THAT(LoadGenerationConfig(dir.path())->top_k, Optional(3));
  std::filesystem::remove(dir.File("generation_config.json"));
  std::filesystem::create_directory(dir.File("generation_config.json"));
  EXPECT_FALSE(LoadGenerationConfig(dir.path()).ok());
}

TEST(GainTest, OneKeyOfAReportIsReadOrThereIsNone) {
  const TemporaryDir dir;
  EXPECT_EQ(*LoadGain(dir.path()), std::nullopt);
  dir.Write("fox_gain.json", R"({"gain": 1234.5, "mean_by_layer": [1, 2], "texts": ["a.txt"]})");
  EXPECT_THAT(*LoadGain(dir.path()), Optional(1234.5));
}

TEST(GainTest, RefusalsNameFileAndKey) {
  const TemporaryDir dir;
  for (const char* gain : {"0", "-1", "\"1\"", "null", "[]", "NaN", "1e999"}) {
    SCOPED_TRACE(gain);
    dir.Write("fox_gain.json", std::string("{\"gain\": ") + gain + "}");
    ExpectRefused(LoadGain(dir.path()).status(), "fox_gain.json");
  }
  dir.Write("fox_gain.json", "{\"median\": 1}");
  ExpectRefused(LoadGain(dir.path()).status(), "gain must be a number above 0");
}

}  // namespace
}  // namespace fox
