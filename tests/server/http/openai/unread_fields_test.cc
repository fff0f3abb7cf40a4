// Unread fields: refusals with their advice, and fields that are ignored.
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "server/http/openai/json_fields.h"

namespace fox {
namespace {

using Json = nlohmann::json;

// The result for an object whose reader has asked for the fields below.
std::string ErrorOf(const Json& object, FieldPlace place = FieldPlace::kBody) {
  JsonFields fields(object);
  for (const char* name : {"max_tokens", "temperature", "top_p", "stop", "n", "stream", "seed"}) {
    fields.Find(name);
  }
  return std::string(CheckUnreadFields(fields, place).message());
}

constexpr char kNotSupported[] = "not supported; leave it out";

TEST(UnreadFieldsTest, WhatIsNotReadIsRefusedWithAdvice) {
  const std::pair<const char*, const char*> cases[] = {
      {"max_new_tokens", "did you mean max_tokens?"},
      {"n_predict", "did you mean max_tokens?"},
      {"messages", "of /v1/chat/completions; send prompt"},
      {"guided_json", "send response_format or structured_outputs"},
      {"grammar", "send response_format or structured_outputs"},
      {"tools", "of /v1/chat/completions"},
      {"functions", "send tools and tool_choice"},
      {"prompt_logprobs", "not supported; echo and logprobs of /v1/completions bring them"},
      {"prompt_embeds", "not supported; a prompt is text or token ids"},
      {"bad_words", "not supported; a logit_bias of -100 keeps a token out"},
      {"stop_sequences", "did you mean stop?"},
      {"repeat_penalty", "did you mean repetition_penalty?"},
      // A letter off.
      {"max_token", "did you mean max_tokens?"},
      {"maxTokens", "did you mean max_tokens?"},
      {"max-tokens", "did you mean max_tokens?"},
      {"temprature", "did you mean temperature?"},
      {"stops", "did you mean stop?"},
      {"topP", "did you mean top_p?"},
      {"Stream", "did you mean stream?"},
      // Nothing is known of them.
      {"unknown", kNotSupported},
      {"k", kNotSupported},
      {"kv_transfer_params", kNotSupported},
      {"verbosity", kNotSupported},
  };
  for (const auto& [name, advice] : cases) {
    EXPECT_EQ(ErrorOf({{name, 9}}), absl::StrCat(name, ": ", advice)) << name;
  }
  for (const std::string& odd :
       {std::string(65, 'a'), std::string("sto\xc3\xb6p"), std::string("stop\n")}) {
    EXPECT_EQ(ErrorOf({{odd, 1}}).find("the body: a field has an unknown name"), 0u) << odd;
  }
}

TEST(UnreadFieldsTest, IgnoredAreThoseOfTheListWhereTheyStand) {
  for (const char* name : {"user", "metadata", "store", "service_tier", "prompt_cache_key",
                           "prompt_cache_options", "moderation"}) {
    EXPECT_EQ(ErrorOf({{name, 1}}), "") << name;
    EXPECT_EQ(ErrorOf({{name, 1}}, FieldPlace::kStreamOptions),
              absl::StrCat(name, ": ", kNotSupported))
        << name;
  }
  // LiteLLM sends its notes on another server's thoughts.
  for (const char* name : {"thinking_blocks", "reasoning_items", "reasoning_details"}) {
    EXPECT_EQ(ErrorOf({{name, {1}}}, FieldPlace::kMessage), "") << name;
    EXPECT_NE(ErrorOf({{name, {1}}}), "") << name;
  }
  EXPECT_EQ(ErrorOf({{"strict", true}, {"name", "x"}}, FieldPlace::kSchema), "");
  EXPECT_EQ(ErrorOf({{"strict", true}}), absl::StrCat("strict: ", kNotSupported));
  EXPECT_EQ(ErrorOf({{"schema", {{"a", 1}}}}, FieldPlace::kFormat),
            "schema: not of this type; a schema is of json_schema");
  EXPECT_EQ(ErrorOf({{"temperature", 1}}), "");
}

TEST(UnreadFieldsTest, ValuesThatAskForNothingAreTaken) {
  for (const Json& nothing : {Json(), Json(""), Json::array(), Json::object()}) {
    SCOPED_TRACE(nothing);
    EXPECT_EQ(ErrorOf({{"guided_json", nothing},
                       {"unknown", nothing},
                       {"tool_choice", "auto"},
                       {"tools", nothing},
                       {"suffix", nothing}}),
              "");
  }
  // Values that ask for the server's default, and their contraries.
  const std::pair<const char*, std::pair<Json, Json>> cases[] = {
      {"use_beam_search", {false, true}},
      {"do_sample", {true, false}},
      {"typical_p", {1.0, 0.9}},
      {"mirostat", {0, 2}},
      {"modalities", {Json::array({"text"}), Json::array({"text", "audio"})}},
      {"parallel_tool_calls", {true, false}},
      {"enable_thinking", {nullptr, false}},
      {"verbosity", {"medium", "low"}},
      {"background", {false, true}},
      {"unknown", {nullptr, false}},
  };
  for (const auto& [name, values] : cases) {
    EXPECT_EQ(ErrorOf({{name, values.first}}), "") << name;
    EXPECT_EQ(ErrorOf({{name, values.second}}).find(absl::StrCat(name, ": ")), 0u) << name;
  }
}

// Each would be compared with each known name.
TEST(UnreadFieldsTest, TheirNumberIsBounded) {
  Json many;
  for (int i = 0; i < 128; ++i) many[absl::StrCat("field", i)] = nullptr;
  EXPECT_EQ(ErrorOf(many), "");
  many["one more"] = nullptr;
  EXPECT_EQ(ErrorOf(many), "the body: must have at most 128 fields");
}

}  // namespace
}  // namespace fox
