// Behaviors of a match, refused patterns, and texts on which a pattern takes too many steps.
#include "models/tokenizer/pretokenizer.h"

#include <gtest/gtest.h>

#include <optional>

#include "tests/models/refused.h"

namespace fox {
namespace {

using Behavior = PretokenizerStep::Behavior;

// The pieces with | between them; no value if the text is refused.
std::optional<std::string> Cut(const std::vector<PretokenizerStep>& steps,
                               const std::string& text) {
  const auto pretokenizer = Pretokenizer::Create(steps);
  EXPECT_TRUE(pretokenizer.ok()) << pretokenizer.status();
  std::string shown;
  uint64_t budget = Pretokenizer::Budget(text.size());
  const absl::Status status = pretokenizer->Split(text, &budget, [&](std::string_view piece) {
    shown.append(shown.empty() ? "" : "|").append(piece);
  });
  if (status.ok()) return shown;
  ExpectRefused(status, "too many steps");
  return std::nullopt;
}

TEST(PretokenizerTest, BehaviorsOfTokenizers) {  // results of the package `tokenizers`
  const struct {
    Behavior behavior;
    const char *cut, *inverted;
  } kCases[] = {{Behavior::kRemoved, "a|b", "-|-|-"},
                {Behavior::kIsolated, "-|a|-|-|b", "-|a|-|-|b"},
                {Behavior::kMergedWithPrevious, "-|a-|-|b", "-a|-|-b"},
                {Behavior::kMergedWithNext, "-a|-|-b", "-|a-|-|b"},
                {Behavior::kContiguous, "-|a|--|b", "-|a|--|b"}};
  for (const auto& [behavior, cut, inverted] : kCases) {
    const std::string literal = LiteralPattern("-");
    EXPECT_EQ(Cut({{.pattern = literal, .behavior = behavior}}, "-a--b"), cut);
    EXPECT_EQ(Cut({{.pattern = literal, .behavior = behavior, .invert = true}}, "-a--b"), inverted);
  }
  const PretokenizerStep dot = {.pattern = LiteralPattern("."), .behavior = Behavior::kRemoved};
  EXPECT_EQ(Cut({dot, {.prefix_space = true, .pattern = ""}}, "a. b.c"), " a| b| c");
  EXPECT_EQ(Cut({{.pattern = "b$|^a"}}, "a\nab\nb"), "a|\n|a|b|\n|b");
  EXPECT_EQ(Cut({}, "a b"), "a b");
  EXPECT_EQ(Cut({}, ""), "");
}

TEST(PretokenizerTest, PatternsThatMayMeanSomethingElseAreRefused) {
  const std::pair<const char*, const char*> kCases[] = {{R"(a\h)", R"(\h)"},
                                                        {R"(\w+)", R"(\w)"},
                                                        {R"(\1)", R"(\1)"},
                                                        {R"([a\R])", R"(\R)"},
                                                        {R"(\p{Han})", R"(\p{Han})"},
                                                        {R"(\p{Latin})", "Latin"},
                                                        {R"(\p{^L})", R"(\p{^L})"},
                                                        {R"(\pL)", "\\p"},
                                                        {"[a[b]]", "[b"},
                                                        {"[a&&b]", "&&"},
                                                        {"[]a]", "[]"},
                                                        {"(*UTF)a", "(*U"},
                                                        {"(?i)a", "(?i"},
                                                        {"(?<n>a)", "(?<"},
                                                        {"a{2}+", "}+"},
                                                        {"a{,2}", "{,2"},
                                                        {"a*", "empty"},
                                                        {"(a", "parenthesis"},
                                                        {"a\xff", "not a short text"}};
  for (const auto& [pattern, named] : kCases) {
    const absl::Status status = Pretokenizer::Create({{.pattern = pattern}}).status();
    EXPECT_TRUE(absl::IsUnimplemented(status)) << pattern << status;
    EXPECT_NE(std::string(status.message()).find(named), std::string::npos) << status;
  }
}

TEST(PretokenizerTest, ATextThatTakesTooManyStepsIsRefused) {
  EXPECT_EQ(Cut({{.pattern = "(?:a|aa)+$"}}, std::string(100, 'a') + "b"), std::nullopt);
  const std::string letters(20'000, 'a');  // more than the stack of compiled code holds
  EXPECT_TRUE(Cut({{.pattern = "(?:a|b)+"}}, letters) == letters);
  const PretokenizerStep quadratic = {.pattern = R"(\s+$)"};
  EXPECT_EQ(Cut({quadratic}, std::string(1000, ' ') + "b"), std::string(1000, ' ') + "b");
  EXPECT_EQ(Cut({quadratic}, std::string(1 << 18, ' ') + "b"), std::nullopt);
}

}  // namespace
}  // namespace fox
