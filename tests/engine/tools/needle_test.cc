// Prompts of the needle in a haystack: what stands where, and how long they are.
#include "engine/tools/needle.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "tests/engine/tools/run_program.h"

namespace fox {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;

const std::string kDemo = std::string(FOX_SOURCE_DIR) + "/models/demo";
constexpr int32_t kBos = 1;

class NeedlePromptsTest : public ::testing::Test {
 protected:
  NeedlePromptsTest() {
    auto loaded = LoadTokenizer(kDemo, 8192);
    EXPECT_TRUE(loaded.ok()) << loaded.status();
    tokenizer_ = std::move(*loaded);
  }
  NeedlePrompts Prompts(const std::string& text) const {
    auto prompts = NeedlePrompts::Make(*tokenizer_, kBos, text);
    EXPECT_TRUE(prompts.ok()) << prompts.status();
    return *std::move(prompts);
  }
  NeedlePrompts Book() const { return Prompts(ReadWhole(kDemo + "/prompt_long.txt")); }
  static NeedlePrompt Made(const NeedlePrompts& prompts, int64_t tokens,
                           std::optional<double> depth, int64_t trial) {
    auto prompt = prompts.Prompt(tokens, depth, trial);
    EXPECT_TRUE(prompt.ok()) << prompt.status();
    return *std::move(prompt);
  }
  double Tokens(const std::string& text) const {
    return static_cast<double>(tokenizer_->Encode(text, false)->size());
  }
  std::unique_ptr<Tokenizer> tokenizer_;
};

TEST_F(NeedlePromptsTest, TheNeedleLiesWhereItShould) {
  const NeedlePrompts prompts = Book();
  for (const int64_t tokens : {256, 1024, 5000}) {
    for (const double depth : {0.0, 0.25, 0.5, 1.0}) {
      for (int64_t trial = 0; trial < 9; ++trial) {
        const NeedlePrompt made = Made(prompts, tokens, depth, trial);
        const std::string needle = NeedlePrompts::Needle(trial) + "\n\n";
        const size_t at = made.text.find(needle);
        ASSERT_NE(at, std::string::npos);
        EXPECT_EQ(made.text.find(needle, at + 1), std::string::npos);
        EXPECT_THAT(made.text, EndsWith("\n\n" + NeedlePrompts::Question()));
        const std::string before = made.text.substr(0, at);
        std::string rest = made.text.substr(at + needle.size());
        rest.resize(rest.size() - NeedlePrompts::Question().size());
        const double got = Tokens(before) / (Tokens(before) + Tokens(rest));
        // Off by at most half of the longest paragraph, a sixteenth of what the haystack may have.
        EXPECT_NEAR(got, depth, 0.08) << tokens << " " << trial;
        if (depth == 0 || depth == 1) {
          EXPECT_EQ(got, depth);
        }
      }
    }
  }
}

TEST_F(NeedlePromptsTest, ThePromptAndItsAnswerFit) {
  const NeedlePrompts prompts = Book();
  for (int64_t tokens = 100; tokens < 9000; tokens = tokens * 5 / 4) {
    for (int64_t trial = 0; trial < 3; ++trial) {
      const NeedlePrompt made = Made(prompts, tokens, 0.5, trial);
      const auto size = static_cast<int64_t>(made.prompt.size() + made.value.size());
      EXPECT_LE(size, tokens);
      EXPECT_GE(size, tokens - 64);  // there are short paragraphs, so little is left over
      EXPECT_EQ(made.prompt.front(), kBos);
    }
  }
  EXPECT_TRUE(absl::IsInvalidArgument(prompts.Prompt(20, 0.5, 0).status()));
}

TEST_F(NeedlePromptsTest, TheAnswerContinuesThePrompt) {
  const NeedlePrompts prompts = Book();
  std::set<std::string> answers;
  std::set<int32_t> first;
  for (int64_t trial = 0; trial < 8; ++trial) {
    const NeedlePrompt made = Made(prompts, 256, std::nullopt, trial);
    std::vector<int32_t> ids = made.prompt;
    ids.insert(ids.end(), made.value.begin(), made.value.end());
    const std::string whole = Detokenize(*tokenizer_, ids, true);
    ASSERT_THAT(NeedlePrompts::Needle(trial), HasSubstr(NeedlePrompts::Question()));
    const std::string answer =
        NeedlePrompts::Needle(trial).substr(NeedlePrompts::Question().size());
    EXPECT_THAT(whole + ".", EndsWith(NeedlePrompts::Question() + answer));
    answers.insert(answer);
    EXPECT_EQ(made.choices.size(), 8u);
    first.insert(made.choices.begin(), made.choices.end());
    EXPECT_EQ(made.choices[static_cast<size_t>(trial)], made.value.front());
  }
  EXPECT_EQ(answers.size(), 8u);
  EXPECT_EQ(first.size(), 8u);
}

TEST_F(NeedlePromptsTest, WithoutADepthTheNeedleIsLeftOut) {
  const NeedlePrompts prompts = Book();
  const NeedlePrompt without = Made(prompts, 700, std::nullopt, 3);
  EXPECT_EQ(without.text.find(NeedlePrompts::Question()),
            without.text.size() - NeedlePrompts::Question().size());
  EXPECT_NE(Made(prompts, 700, 0.5, 4).text.substr(0, 40),
            Made(prompts, 700, 0.5, 3).text.substr(0, 40));
}

TEST_F(NeedlePromptsTest, AShortTextIsRepeatedAndASeparatorIsNone) {
  const NeedlePrompts prompts = Prompts(std::string("It rained.\n\0\n\nThe captain slept.\n", 32));
  const std::string text = Made(prompts, 150, 1.0, 0).text;
  EXPECT_THAT(text, HasSubstr("It rained.\n\nThe captain slept.\n\nIt rained."));
  EXPECT_THAT(text, Not(HasSubstr(std::string(1, '\0'))));
}

TEST_F(NeedlePromptsTest, NothingToHideInIsAnError) {
  for (const std::string text : {"", "\n\n \n", "caf\xe9"}) {
    EXPECT_TRUE(
        absl::IsInvalidArgument(NeedlePrompts::Make(*tokenizer_, std::nullopt, text).status()))
        << text;
  }
}

}  // namespace
}  // namespace fox
