// vocab.json and merges.txt as files: their syntax, and where special tokens come from.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "models/tokenizer/bpe_definition.h"
#include "tests/models/refused.h"

namespace fox {
namespace {

BpeDefinition Parsed(const std::string& vocab, const std::string& merges,
                     const TokenizerConfig& config = {}) {
  const auto definition = ParseGpt2Files(vocab, merges, config);
  EXPECT_TRUE(definition.ok()) << definition.status();
  return definition.value_or(BpeDefinition());
}

void ExpectError(const std::string& vocab, const std::string& merges, const std::string& part) {
  SCOPED_TRACE(vocab + "\n" + merges);
  ExpectRefused(ParseGpt2Files(vocab, merges, {}).status(), part);
}

TEST(Gpt2FilesTest, NamesItsFiles) {
  const BpeDefinition definition = Parsed(R"({"a": 0, "b": 1})", "a b\n");
  EXPECT_STREQ(definition.vocab_file, "vocab.json");
  EXPECT_STREQ(definition.merges_file, "merges.txt");
  EXPECT_EQ(definition.vocab.at("b"), 1);
  EXPECT_EQ(definition.merges.size(), 1u);
}

TEST(Gpt2FilesTest, TheVocabularyIsOneObjectAndNothingElse) {
  const std::string good = R"({"a": 0})";
  ExpectError(good + "x", "", "vocab.json: not valid JSON");
  ExpectError(good + std::string("\0", 1), "", "vocab.json: not valid JSON");
  ExpectError(good + std::string("\0{\"b\": 1}", 9), "", "vocab.json: not valid JSON");
  ExpectError(R"({"a": 0, "a": 0})", "", "vocab.json: duplicate key \"a\"");
  ExpectError("[0]", "", "vocab.json: not a JSON object");
  ExpectError("", "", "vocab.json: not valid JSON");
  for (const char* id : {"-1", "1.5", "\"1\"", "null", "[]", "{}", "2147483648"}) {
    ExpectError("{\"a\": " + std::string(id) + "}", "", "vocab.json: id of token \"a\"");
  }
  EXPECT_EQ(Parsed(R"({"a": 2147483647})", "").vocab.at("a"), 2147483647);
}

TEST(Gpt2FilesTest, AMergeIsTwoTokensOnALine) {
  const BpeDefinition definition = Parsed("{}", "#version: 0.2\r\na b\r\n# #\nab c");
  using Merges = std::vector<std::pair<std::string, std::string>>;
  EXPECT_EQ(definition.merges, (Merges{{"a", "b"}, {"#", "#"}, {"ab", "c"}}));
  for (const char* line : {"a", "a ", " a", "a b c", ""}) {
    ExpectError("{}", "a b\n" + std::string(line) + "\n", "merges.txt: line 2 is not two tokens");
  }
}

const AddedToken* Find(const BpeDefinition& definition, const std::string& content) {
  const auto it = std::find_if(definition.added.begin(), definition.added.end(),
                               [&](const AddedToken& token) { return token.content == content; });
  return it == definition.added.end() ? nullptr : &*it;
}

TEST(Gpt2FilesTest, SpecialTokensComeFromFourPlaces) {
  const auto config = ParseTokenizerConfig(R"({"added_tokens_decoder": {"5": {"content": "<d>"}},
                               "bos_token": "<d>", "pad_token": "a"})",
                                           R"({"unk_token": "<m>"})", R"({"<m>": 6})");
  ASSERT_TRUE(config.ok()) << config.status();
  const BpeDefinition definition = Parsed(R"({"a": 0, "<|endoftext|>": 1})", "", *config);
  const struct {
    const char* content;
    int32_t id;
    bool special;
    const char* file;
  } kExpected[] = {{"<d>", 5, true, "tokenizer_config.json"},
                   {"<m>", 6, true, "added_tokens.json"},
                   {"a", 0, true, "tokenizer_config.json"},
                   {"<|endoftext|>", 1, true, "vocab.json"}};
  for (const auto& expected : kExpected) {
    const AddedToken* token = Find(definition, expected.content);
    ASSERT_NE(token, nullptr) << expected.content;
    EXPECT_EQ(token->id, expected.id) << expected.content;
    EXPECT_EQ(token->special, expected.special) << expected.content;
    EXPECT_STREQ(token->file, expected.file) << expected.content;
  }
  EXPECT_EQ(definition.added.size(), 4u);
  EXPECT_EQ(definition.bos->content, "<d>");
  EXPECT_EQ(definition.eos->content, "<|endoftext|>");  // named nowhere: GPT-2's own
  EXPECT_STREQ(definition.unk->file, "special_tokens_map.json");
}

}  // namespace
}  // namespace fox
