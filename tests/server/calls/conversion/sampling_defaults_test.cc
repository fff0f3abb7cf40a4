// Defaults from generation_config.json: the keys that are taken, values out of the engine's ranges.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/calls/conversion/request_conversion.h"

namespace fox {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

absl::StatusOr<SamplingDefaults> Defaults(const std::string& json) {
  const absl::StatusOr<GenerationConfig> config = ParseGenerationConfig(json);
  EXPECT_TRUE(config.ok()) << config.status();
  return SamplingDefaultsFrom(*config, 100);
}

TEST(SamplingDefaultsTest, TheFileCountsWhereItSaysSomething) {
  absl::StatusOr<SamplingDefaults> defaults = Defaults(
      R"({"temperature": 0.5, "top_k": 50, "max_new_tokens": 99, "repetition_penalty": 1.5,
          "eos_token_id": [2, 99]})");
  ASSERT_TRUE(defaults.ok()) << defaults.status();
  EXPECT_EQ(defaults->temperature, 0.5f);
  EXPECT_EQ(defaults->top_p, 1.0f);
  EXPECT_EQ(defaults->top_k, 50u);
  EXPECT_EQ(defaults->min_p, 0.0f);
  EXPECT_EQ(defaults->max_tokens, 99u);
  EXPECT_EQ(defaults->repetition_penalty, 1.5f);
  EXPECT_THAT(defaults->eos_token_ids, ElementsAre(2, 99));
  EXPECT_THAT(ToJson(*defaults), HasSubstr("\"top_k\":50"));
  EXPECT_EQ(Defaults("{}")->max_tokens, 256u);
  EXPECT_EQ(Defaults("{\"top_k\": -1}")->top_k, 0u);
}

// transformers loads such files and never generates these ids.
TEST(SamplingDefaultsTest, EndsOutsideTheVocabularyEndNothing) {
  for (const char* eos : {"-1", "100", "9223372036854775807", "[-1, 2, 100]"}) {
    SCOPED_TRACE(eos);
    const auto defaults = Defaults("{\"eos_token_id\": " + std::string(eos) + "}");
    ASSERT_TRUE(defaults.ok()) << defaults.status();
    EXPECT_EQ(defaults->eos_token_ids,
              eos[0] == '[' ? std::vector<int32_t>{2} : std::vector<int32_t>{});
  }
}

TEST(SamplingDefaultsTest, RefusalsNameTheKey) {
  const std::pair<std::string, const char*> cases[] = {
      {"{\"temperature\": -1}", "temperature"},
      {"{\"top_p\": -0.1}", "top_p"},
      {"{\"min_p\": 1.1}", "min_p"},
      {"{\"repetition_penalty\": 0}", "repetition_penalty"},
      {"{\"top_k\": -2}", "top_k"},
      {"{\"top_k\": 2147483648}", "top_k"},
      {"{\"max_new_tokens\": 0}", "max_new_tokens"},
  };
  for (const auto& [json, key] : cases) {
    const absl::Status status = Defaults(json).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << json;
    EXPECT_THAT(std::string(status.message()),
                StartsWith(std::string("generation_config.json: ") + key))
        << json;
  }
  std::string many = "{\"eos_token_id\": [1";
  for (int i = 0; i < 64; ++i) many += ", 1";
  EXPECT_FALSE(Defaults(many + "]}").ok());
}

}  // namespace
}  // namespace fox
