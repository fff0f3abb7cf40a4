// Streaming: pieces of text that are always whole, and together equal Detokenize; escapes and
// characters that several tokens share.
#include "models/tokenizer/token_stream.h"

#include <gtest/gtest.h>

#include <random>

#include "models/tokenizer/utf8.h"
#include "tests/models/tokenizer/test_files.h"

namespace fox {
namespace {

// A vocabulary that a test lists: token i is tokens[i]. If leading spaces are stripped, every token
// consists of whole characters.
class FakeTokenizer : public Tokenizer {
 public:
  FakeTokenizer(const std::vector<std::string>& tokens, Info info) {
    for (const std::string& bytes : tokens) {
      const TokenKind text = bytes.starts_with(' ') ? TokenKind::kWord : TokenKind::kText;
      tokens_.push_back({bytes, info.strip_leading_space ? text : TokenKind::kBytes});
    }
    info_ = std::move(info);
  }
  absl::StatusOr<std::vector<int32_t>> Encode(const std::string& /*text*/,
                                              bool /*add_special_tokens*/) const override {
    return std::vector<int32_t>();
  }
};

// The results of all pushes, and at the end the result of Finish.
std::vector<std::string> Pushes(const std::vector<std::string>& tokens, Tokenizer::Info info,
                                bool at_text_start = true) {
  const FakeTokenizer tokenizer(tokens, std::move(info));
  TokenStream stream(tokenizer, true, at_text_start);
  std::vector<std::string> out;
  for (size_t i = 0; i < tokens.size(); ++i) out.push_back(stream.Push(static_cast<int32_t>(i)));
  out.push_back(stream.Finish());
  return out;
}

using Texts = std::vector<std::string>;

TEST(TokenStreamTest, CharactersWaitForTheirBytes) {
  EXPECT_EQ(Pushes({"a\xF0\x9F", "\x98", "\x80z", "\xC3"}, {}),
            (Texts{"a", "", "\xF0\x9F\x98\x80z", "", "\xEF\xBF\xBD"}));
  EXPECT_EQ(Pushes({"\xF0\x9F", "b"}, {}), (Texts{"",
                                                  "\xEF\xBF\xBD"
                                                  "b",
                                                  ""}));
}

TEST(TokenStreamTest, LeadingSpaceGoesOnlyAtTheStart) {
  Tokenizer::Info info;
  info.strip_leading_space = true;
  EXPECT_EQ(Pushes({"", " one", " two"}, info), (Texts{"", "one", " two", ""}));
  EXPECT_EQ(Pushes({" ", " two"}, info), (Texts{"", " two", ""}));
  EXPECT_EQ(Pushes({" one", " two"}, info, false), (Texts{" one", " two", ""}));
  info.strip_all_leading_spaces = true;
  EXPECT_EQ(Pushes({" ", " two", " three"}, info), (Texts{"", "two", " three", ""}));
}

TEST(TokenStreamTest, JsonEscapesWaitForTheirEnd) {
  Tokenizer::Info info;
  info.json_escaped = true;
  EXPECT_EQ(Pushes({"caf\\u", "00", "e9", "!", "\\", "n"}, info),
            (Texts{"caf", "", "\xC3\xA9", "!", "", "\n", ""}));
  EXPECT_EQ(Pushes({"\\ud83d", "\\ude", "00", "\\ud83d", "x", "\\u12"}, info),
            (Texts{"", "", "\xF0\x9F\x98\x80", "", "\xEF\xBF\xBDx", "", "\\u12"}));
}

void ExpectStreamsLikeDetokenize(const Tokenizer& tokenizer, uint32_t seed) {
  std::mt19937 rng(seed);
  for (int round = 0; round < 300; ++round) {
    std::vector<int32_t> ids(1 + rng() % 40);
    for (int32_t& id : ids) {
      // Beyond the vocabulary, too: models pad theirs.
      id = static_cast<int32_t>(rng() % static_cast<uint32_t>(tokenizer.info().vocab_size + 16));
    }
    SCOPED_TRACE(testing::PrintToString(ids));
    const bool skip_special = rng() % 2 == 0;
    TokenStream stream(tokenizer, skip_special);
    std::string text;
    for (const int32_t id : ids) {
      const std::string part = stream.Push(id);
      ASSERT_TRUE(IsValidUtf8(part)) << id;
      text += part;
    }
    const std::string rest = stream.Finish();
    ASSERT_TRUE(IsValidUtf8(rest));
    ASSERT_EQ(text + rest, Detokenize(tokenizer, ids, skip_special));
  }
}

TEST(TokenStreamTest, RandomIdsOfEveryTokenizer) {
  ExpectStreamsLikeDetokenize(*LoadGpt2("{}"), 1);
  ExpectStreamsLikeDetokenize(*LoadLongCrawl64(), 2);
  ExpectStreamsLikeDetokenize(*LoadDemo(), 3);
  ExpectStreamsLikeDetokenize(*LoadSmall(), 4);
}

}  // namespace
}  // namespace fox
