// Unread fields: what is refused, with which advice, and what is ignored.
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "server/http/json_fields.h"

namespace fox {
namespace {

using Json = nlohmann::json;

// Of a route that has read these fields.
std::string ErrorOf(const Json& body) {
  JsonFields fields(body);
  for (const char* name : {"max_tokens", "temperature", "top_p", "stop", "n", "stream", "seed"}) {
    fields.Find(name);
  }
  return std::string(CheckUnreadFields(fields).message());
}

TEST(UnreadFieldsTest, WhatChangesTheAnswerIsRefusedWithAdvice) {
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
  };
  for (const auto& [name, advice] : cases) {
    EXPECT_EQ(ErrorOf({{name, 1}}), absl::StrCat(name, ": ", advice));
  }
}

TEST(UnreadFieldsTest, AllElseIsIgnored) {
  for (const char* name : {"user", "metadata", "store", "service_tier", "k", "m", "x", "unknown"}) {
    EXPECT_EQ(ErrorOf({{name, 1}}), "") << name;
  }
  EXPECT_EQ(ErrorOf({{"temperature", 1}}), "");
  EXPECT_EQ(ErrorOf({{std::string(100000, 'a'), 1}}), "");
  for (const char* odd : {"sto\xc3\xb6p", "stop\n", "stop "}) EXPECT_EQ(ErrorOf({{odd, 1}}), "");
  // Clients that send their defaults ask for nothing.
  for (const Json& nothing : {Json(), Json(false), Json(""), Json::array(), Json::object()}) {
    EXPECT_EQ(ErrorOf({{"guided_json", nothing},
                       {"tool_choice", "auto"},
                       {"tools", nothing},
                       {"suffix", nothing}}),
              "");
  }
}

// Each would be compared with each known name.
TEST(UnreadFieldsTest, TheirNumberIsBounded) {
  Json many;
  for (int i = 0; i < 128; ++i) many[absl::StrCat("field", i)] = 1;
  EXPECT_EQ(ErrorOf(many), "");
  many["one more"] = 1;
  EXPECT_EQ(ErrorOf(many), "the body: must have at most 128 fields");
}

}  // namespace
}  // namespace fox
