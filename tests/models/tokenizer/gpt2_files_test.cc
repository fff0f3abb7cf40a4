// vocab.json and merges.txt as files: their syntax, and where special tokens come from.
#include <gtest/gtest.h>

#include <iterator>
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

TEST(Gpt2FilesTest, SpecialTokensComeFromThreePlaces) {
  const auto config = ParseTokenizerConfig(R"({"bos_token": "<d>", "pad_token": "a"})",
                                           R"({"unk_token": "<m>"})", R"({"<m>": 6, "<d>": 5})");
  ASSERT_TRUE(config.ok()) << config.status();
  const BpeDefinition definition = Parsed(R"({"a": 0, "<|endoftext|>": 1})", "", *config);
  const struct {
    const char* content;
    int32_t id;
    const char* file;
  } kExpected[] = {{"<d>", 2, "added_tokens.json"},  // the next ids; ids in the file are ignored
                   {"<m>", 3, "added_tokens.json"},
                   {"<|endoftext|>", 1, "vocab.json"},
                   {"a", 0, "tokenizer_config.json"}};
  ASSERT_EQ(definition.added.size(), std::size(kExpected));
  for (size_t i = 0; i < std::size(kExpected); ++i) {
    SCOPED_TRACE(kExpected[i].content);
    EXPECT_EQ(definition.added[i].content, kExpected[i].content);
    EXPECT_EQ(definition.added[i].id, kExpected[i].id);
    EXPECT_TRUE(definition.added[i].special);
    EXPECT_STREQ(definition.added[i].file, kExpected[i].file);
  }
  EXPECT_EQ(definition.bos_id, 2);
  EXPECT_EQ(definition.eos_id, 1);  // named nowhere: GPT-2's own
  EXPECT_EQ(definition.unk_id, 3);
}

TEST(Gpt2FilesTest, TheClassDecides) {
  TokenizerConfig config;
  const auto parsed = [&config](const char* name) {
    config.tokenizer_class = name;
    return Parsed(R"({"a": 0, "<|endoftext|>": 1})", "", config);
  };
  EXPECT_EQ(parsed("").pretokenizer[0].pattern, kGpt2Pattern);
  EXPECT_EQ(parsed("GPT2Tokenizer").pretokenizer[0].pattern, kGpt2Pattern);
  EXPECT_FALSE(parsed("GPT2Tokenizer").nfc);
  const BpeDefinition qwen = parsed("Qwen2Tokenizer");
  EXPECT_EQ(qwen.pretokenizer[0].pattern, kQwen2Pattern);
  EXPECT_TRUE(qwen.nfc);
  EXPECT_FALSE(qwen.bos_id.has_value());
  EXPECT_EQ(qwen.eos_id, 1);
  config.tokenizer_class = "RobertaTokenizer";
  ExpectRefused(ParseGpt2Files("{}", "", config).status(),
                "tokenizer_class \"RobertaTokenizer\" with vocab.json and merges.txt is not");
}

}  // namespace
}  // namespace fox
