// Where a text is cut at added tokens, for each of their options.
#include "models/tokenizer/added_tokens.h"

#include <gtest/gtest.h>

namespace fox {
namespace {

AddedTokenSplitter SplitterOf(const std::vector<AddedToken>& tokens) {
  AddedTokenSplitter splitter;
  for (const AddedToken& token : tokens) splitter.Add(token);
  return splitter;
}

// The parts of a text with | between them; a token is written as [id:text].
std::string Cut(const AddedTokenSplitter& splitter, const std::string& text) {
  std::string shown;
  splitter.Split(text, [&](const TextPart& part) {
    EXPECT_FALSE(part.text.empty());
    const std::string content(part.text);
    if (!shown.empty()) shown += '|';
    if (part.id == TextPart::kText) {
      shown += content;
    } else {
      shown.append("[").append(std::to_string(part.id)).append(":").append(content).append("]");
    }
  });
  return shown;
}

TEST(AddedTokensTest, TheLeftmostWinsThenTheLongest) {
  const auto splitter = SplitterOf({{"<a>", 1}, {"<a><b>", 2}, {"b>c", 3}, {"aa", 4}});
  EXPECT_EQ(Cut(splitter, ""), "");
  EXPECT_EQ(Cut(splitter, "<a"), "<a");
  EXPECT_EQ(Cut(splitter, "x<a>y"), "x|[1:<a>]|y");
  EXPECT_EQ(Cut(splitter, "<a><b>c"), "[2:<a><b>]|c");
  EXPECT_EQ(Cut(splitter, "<a><b"), "[1:<a>]|<b");
  EXPECT_EQ(Cut(splitter, "<b>c"), "<|[3:b>c]");
  EXPECT_EQ(Cut(splitter, "aaaaa"), "[4:aa]|[4:aa]|a");
}

TEST(AddedTokensTest, SpaceIsSwallowedUpToTheTokenBefore) {
  AddedToken left{"<l>", 1}, right{"<r>", 2};
  left.lstrip = true;
  right.rstrip = true;
  const auto splitter = SplitterOf({left, right});
  EXPECT_EQ(Cut(splitter, "a \t<l> b"), "a|[1: \t<l>]| b");
  EXPECT_EQ(Cut(splitter, "a <r>\n b"), "a |[2:<r>\n ]|b");
  EXPECT_EQ(Cut(splitter, "<r>  <l>"), "[2:<r>  ]|[1:<l>]");
  const auto space = SplitterOf({right, {" ", 3}});
  EXPECT_EQ(Cut(space, "<r> a"), "[2:<r> ]|[3: ]|a");
  // No-break space and ideographic space are white space, zero-width space is none.
  EXPECT_EQ(Cut(splitter, "a\u00a0\u3000<l>"), "a|[1:\u00a0\u3000<l>]");
  EXPECT_EQ(Cut(splitter, "a\u200b<l>"), "a\u200b|[1:<l>]");
}

TEST(AddedTokensTest, NormalizedTokensAreSearchedInTheRemainingText) {
  AddedToken normalized{"x<a>", 1};
  normalized.normalized = true;
  const auto splitter = SplitterOf({normalized, {"<a>", 2}, {"x", 3}});
  EXPECT_EQ(Cut(splitter, "x<a>"), "[3:x]|[2:<a>]");
  const auto alone = SplitterOf({normalized, {"<b>", 2}});
  EXPECT_EQ(Cut(alone, "<b>x<a>y"), "[2:<b>]|[1:x<a>]|y");
}

}  // namespace
}  // namespace fox
