// The three optional files: what each says, which one wins, and errors that name the right one.
#include "models/tokenizer/tokenizer_config.h"

#include <gtest/gtest.h>

#include "tests/models/refused.h"

namespace fox {
namespace {

TEST(TokenizerConfigTest, NoFilesSayNothing) {
  const auto config = ParseTokenizerConfig("", "", "");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->tokenizer_class, "");
  EXPECT_EQ(config->add_bos_token, std::nullopt);
  EXPECT_TRUE(config->roles.empty() && config->added.empty() && config->added_ids.empty());
}

TEST(TokenizerConfigTest, TheMainFileWinsAndNullIsAnAnswer) {
  const auto config = ParseTokenizerConfig(
      R"({"tokenizer_class": "T", "add_bos_token": false, "bos_token": null,
          "eos_token": {"content": "<e>", "lstrip": true}})",
      R"({"bos_token": "<b>", "eos_token": "<other>", "unk_token": "<u>",
          "additional_special_tokens": ["<x>", {"content": "<y>"}]})",
      R"({"<x>": 7})");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->tokenizer_class, "T");
  EXPECT_EQ(config->add_bos_token, false);
  EXPECT_EQ(config->add_prefix_space, std::nullopt);
  EXPECT_EQ(config->roles.at("bos_token"), std::nullopt);
  const AddedToken& eos = *config->roles.at("eos_token");
  EXPECT_EQ(eos.content, "<e>");
  EXPECT_TRUE(eos.lstrip && eos.special && !eos.rstrip);
  EXPECT_STREQ(eos.file, "tokenizer_config.json");
  EXPECT_STREQ(config->roles.at("unk_token")->file, "special_tokens_map.json");
  EXPECT_EQ(config->roles.count("pad_token"), 0u);
  ASSERT_EQ(config->additional.size(), 2u);
  EXPECT_EQ(config->additional[1].content, "<y>");
  EXPECT_EQ(config->added_ids.at("<x>"), 7);
}

TEST(TokenizerConfigTest, ErrorsNameTheFile) {
  const std::string files[] = {"tokenizer_config.json", "special_tokens_map.json",
                               "added_tokens.json"};
  const auto expect = [&](int file, const std::string& text, const std::string& part) {
    std::string texts[3];
    texts[file] = text;
    ExpectRefused(ParseTokenizerConfig(texts[0], texts[1], texts[2]).status(),
                  files[file] + ": " + part);
  };
  for (int file = 0; file < 3; ++file) {
    expect(file, "{} x", "not valid JSON");
    expect(file, std::string("{}\0garbage", 10), "not valid JSON");
    expect(file, "[]", "not a JSON object");
  }
  for (int file = 0; file < 2; ++file) {
    expect(file, R"({"bos_token": 1})", "bos_token is not a token");
    expect(file, R"({"pad_token": {"content": "<p>", "single_word": true}})", "pad_token is not");
    expect(file, R"({"additional_special_tokens": "<x>"})", "additional_special_tokens is not a");
    expect(file, R"({"additional_special_tokens": [1]})", "additional_special_tokens holds no");
  }
  expect(0, R"({"added_tokens_decoder": []})", "added_tokens_decoder is not an object");
  for (const char* key : {"x", "-1", "1x", "9999999999"}) {
    expect(0, "{\"added_tokens_decoder\": {\"" + std::string(key) + "\": {\"content\": \"c\"}}}",
           "added_tokens_decoder entry \"" + std::string(key));
  }
  expect(2, R"({"<x>": -1})", "id of \"<x>\"");
  expect(2, R"({"<x>": "1"})", "id of \"<x>\"");
}

}  // namespace
}  // namespace fox
