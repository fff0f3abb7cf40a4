// The three optional files: their contents, their precedence, and errors that name the right file.
#include "models/tokenizer/tokenizer_config.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "tests/models/refused.h"

namespace fox {
namespace {

TEST(TokenizerConfigTest, NoFilesSayNothing) {
  const auto config = ParseTokenizerConfig("", "", "");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->tokenizer_class, "");
  EXPECT_EQ(config->add_bos_token, std::nullopt);
  EXPECT_TRUE(config->roles.empty() && config->added.empty() && config->named.empty());
}

// The tokens that AddTokens adds to an empty vocabulary.
std::vector<std::string> Added(const TokenizerConfig& config) {
  const absl::flat_hash_map<std::string, int32_t> none;
  AddedTokenList list(none, 0);
  AddTokens(config, &list);
  std::vector<std::string> contents;
  for (const AddedToken& token : list.tokens()) contents.push_back(token.content);
  return contents;
}

TEST(TokenizerConfigTest, SpecialTokensMapWinsAndNullIsAnAnswer) {
  const auto config = ParseTokenizerConfig(
      R"({"tokenizer_class": "TFast", "add_bos_token": false, "legacy": true, "bos_token": null,
          "eos_token": "<other>", "sep_token": "<s>",
          "model_specific_special_tokens": {"a": "<z>"}})",
      R"({"eos_token": {"content": "<e>", "lstrip": true, "single_word": true}, "unk_token": "<u>",
          "additional_special_tokens": ["<x>", {"content": "<y>"}]})",
      R"({"<x>": 7, "<w>": 5})");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->tokenizer_class, "T");
  EXPECT_EQ(config->add_bos_token, false);
  EXPECT_EQ(config->legacy, true);
  EXPECT_EQ(config->add_prefix_space, std::nullopt);
  EXPECT_EQ(config->roles.at("bos_token"), std::nullopt);
  const AddedToken& eos = *config->roles.at("eos_token");
  EXPECT_EQ(eos.content, "<e>");
  EXPECT_TRUE(eos.lstrip && eos.special && eos.single_word && !eos.rstrip);
  EXPECT_STREQ(eos.file, "special_tokens_map.json");
  EXPECT_EQ(config->roles.count("pad_token"), 0u);
  EXPECT_EQ(Added(*config),
            (std::vector<std::string>{"<w>", "<x>", "<e>", "<u>", "<s>", "<z>", "<y>"}));
  EXPECT_TRUE(config->added[0].normalized && !config->added[0].special);
  EXPECT_TRUE(!config->added[1].normalized && config->added[1].special);
}

TEST(TokenizerConfigTest, AddedTokensDecoderHasPrecedence) {
  const auto config = ParseTokenizerConfig(
      R"({"eos_token": "<e>", "added_tokens_decoder": {"10": {"content": "<b>"},
          "9": {"content": "<e>"}}})",
      R"({"eos_token": "<other>", "bos_token": "<b>", "pad_token": "<p>",
          "additional_special_tokens": ["<x>"]})",
      R"({"<x>": 7})");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(Added(*config), (std::vector<std::string>{"<e>", "<b>"}));
  EXPECT_EQ(config->roles.at("eos_token")->content, "<e>");
  EXPECT_EQ(config->roles.at("bos_token")->content, "<b>");
  EXPECT_EQ(config->roles.count("pad_token"), 0u);
  EXPECT_TRUE(config->added[0].special);
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
    expect(file, R"({"pad_token": {"lstrip": true}})", "pad_token is not");
    expect(file, R"({"extra_special_tokens": {"a": 1}})", "extra_special_tokens holds no");
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
