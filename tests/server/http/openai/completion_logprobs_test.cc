// CompletionLogprobs: names of tokens, offsets, and numbers that read back as they were.
#include "server/http/openai/completion_logprobs.h"

#include <gtest/gtest.h>

#include <limits>

#include "nlohmann/json.hpp"
#include "tests/fixtures/character_tokenizer.h"

namespace fox {
namespace {

using Json = nlohmann::json;

v1::TokenLogprobs Token(uint32_t id, float logprob,
                        const std::vector<std::pair<uint32_t, float>>& top) {
  v1::TokenLogprobs out;
  out.mutable_token()->set_token_id(id);
  out.mutable_token()->set_logprob(logprob);
  for (const auto& [other, value] : top) {
    v1::TokenLogprob* entry = out.add_top();
    entry->set_token_id(other);
    entry->set_logprob(value);
  }
  return out;
}

TEST(CompletionLogprobsTest, TokensAreNamedByTheirText) {
  const CharacterTokenizer tokenizer;
  EXPECT_EQ(TokenName(tokenizer, 'a'), "a");
  EXPECT_EQ(TokenName(tokenizer, 0xc3), "bytes:\\xc3");
  EXPECT_EQ(TokenName(tokenizer, CharacterTokenizer::kBos), "<s>");
}

TEST(CompletionLogprobsTest, ListsRunSideBySide) {
  const CharacterTokenizer tokenizer;
  CompletionLogprobs prompt(tokenizer, /*skip_special=*/true, /*at_text_start=*/true);
  EXPECT_EQ(prompt.TakeJson(/*whole=*/false), "null");
  EXPECT_TRUE(Json::parse(prompt.TakeJson(/*whole=*/true))["tokens"].empty());
  prompt.AddFirst(CharacterTokenizer::kBos);
  prompt.Add(Token(0xc3, -0.1f, {{'z', -0.05f}, {0xc3, -0.1f}}));  // two bytes of one character
  prompt.Add(Token(0xa9, -0.2f, {}));
  CompletionLogprobs choice(tokenizer, true, false);
  choice.Follow(prompt, 1);
  choice.Add(Token('b', -std::numeric_limits<float>::infinity(), {}));
  EXPECT_GT(choice.bytes(), prompt.bytes());
  const Json lists = Json::parse(choice.TakeJson(false));
  EXPECT_EQ(lists["tokens"], Json({"<s>", "bytes:\\xc3", "bytes:\\xa9", "b"}));
  EXPECT_EQ(lists["text_offset"], Json({0, 0, 0, 1}));
  EXPECT_TRUE(lists["token_logprobs"][0].is_null());
  EXPECT_EQ(lists["token_logprobs"][1].get<double>(), static_cast<double>(-0.1f));
  EXPECT_EQ(lists["token_logprobs"][3], -9999.0);
  EXPECT_TRUE(lists["top_logprobs"][0].is_null());
  EXPECT_EQ(lists["top_logprobs"][1].size(), 2u);  // its own once
  // Entries that were taken do not come again, and offsets go on.
  choice.Add(Token('c', -1, {}));
  EXPECT_EQ(Json::parse(choice.TakeJson(false))["text_offset"], Json({2}));
}

TEST(CompletionLogprobsTest, ChatHasAnObjectForEachToken) {
  const CharacterTokenizer tokenizer;
  CompletionLogprobs logprobs(tokenizer, true, false, /*chat=*/true);
  EXPECT_EQ(logprobs.TakeJson(/*whole=*/false), "null");
  EXPECT_EQ(logprobs.TakeJson(/*whole=*/true), R"({"content":[],"refusal":null})");
  logprobs.Add(Token('b', -1, {{0xc3, -0.5f}, {'b', -1}}));
  EXPECT_GT(logprobs.bytes(), 0);
  EXPECT_EQ(Json::parse(logprobs.TakeJson(false)), Json::parse(R"({"content": [
      {"token": "b", "logprob": -1, "bytes": [98], "top_logprobs": [
          {"token": "bytes:\\xc3", "logprob": -0.5, "bytes": [195]},
          {"token": "b", "logprob": -1, "bytes": [98]}]}], "refusal": null})"));
  logprobs.Add(Token('c', -2, {}));
  EXPECT_EQ(Json::parse(logprobs.TakeJson(false))["content"].size(), 1u);
}

}  // namespace
}  // namespace fox
