// What a file of tokens may hold, who is found in it, and what a new one changes.
#include "server/calls/token_set.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <optional>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/engine/tools/run_program.h"

namespace fox {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::string ErrorOf(const std::string& content) {
  const std::string path = TempPath("tokens");
  WriteWhole(path, content);
  return std::string(TokenSet::Load(path).status().message());
}

TEST(TokenSetTest, ATokenIsFoundAndIsAClient) {
  const std::string path = TempPath("tokens");
  std::string content = "# operators\r\n\n  first-token \r\nsecond-token";
  WriteWhole(path, content);
  const auto set = TokenSet::Load(path).value();
  EXPECT_EQ(set->size(), 2u);
  const std::optional<uint64_t> first = set->Find("first-token"),
                                second = set->Find("second-token");
  ASSERT_TRUE(first.has_value() && second.has_value());
  EXPECT_NE(*first, *second);
  EXPECT_EQ(set->Find("first-token"), first);
  for (const char* wrong : {"", "first", "first-token ", "FIRST-TOKEN", "first-token\nsecond-token",
                            "# operators", "first-tokem"}) {
    EXPECT_EQ(set->Find(wrong), std::nullopt) << wrong;
  }
}

TEST(TokenSetTest, WrongFilesAreRefusedWithoutTellingTokens) {
  EXPECT_THAT(ErrorOf(""), HasSubstr("no token"));
  EXPECT_THAT(ErrorOf("# none\n\n"), HasSubstr("no token"));
  for (const std::string& line :
       {std::string("short"), std::string("with spaces in it"),
        std::string("umlaut-\xc3\xa4\xc3\xa4"), std::string("nul\0inside", 10),
        std::string(TokenSet::kMaxTokenBytes + 1, 'x')}) {
    const std::string error = ErrorOf("long-enough\n" + line + "\n");
    EXPECT_THAT(error, HasSubstr("line 2"));
    EXPECT_THAT(error, Not(HasSubstr(line)));
  }
  std::string many;
  for (size_t i = 0; i <= TokenSet::kMaxTokens; ++i)
    absl::StrAppend(&many, "token-", 10000 + i, "\n");
  EXPECT_THAT(ErrorOf(many), HasSubstr("more than"));
  EXPECT_THAT(std::string(TokenSet::Load("/nowhere").status().message()),
              HasSubstr("cannot be read"));
}

TEST(TokenSetTest, TheLargestSetHasNoTwoAlike) {
  const std::string path = TempPath("tokens");
  std::string many;
  for (size_t i = 0; i < TokenSet::kMaxTokens; ++i)
    absl::StrAppend(&many, "token-", 10000 + i, "\n");
  WriteWhole(path, many);
  const auto set = TokenSet::Load(path).value();
  std::set<uint64_t> clients;
  for (size_t i = 0; i < TokenSet::kMaxTokens; ++i) {
    clients.insert(set->Find(absl::StrCat("token-", 10000 + i)).value());
  }
  EXPECT_EQ(clients.size(), TokenSet::kMaxTokens);
}

TEST(TokenSetTest, ANewFileCountsAndAWrongOneDoesNot) {
  const std::string path = TempPath("tokens");
  WriteWhole(path, "old-token");
  const auto set = TokenSet::Load(path, /*interval=*/0).value();
  WriteWhole(path, "newer-token");
  EXPECT_TRUE(set->Find("newer-token").has_value());
  EXPECT_EQ(set->Find("old-token"), std::nullopt);
  for (const char* wrong : {"x", "", "short\nlong-enough"}) {
    WriteWhole(path, wrong);
    EXPECT_TRUE(set->Find("newer-token").has_value());
  }
  std::remove(path.c_str());
  EXPECT_TRUE(set->Find("newer-token").has_value());
  WriteWhole(path, "the-last-token");
  EXPECT_TRUE(set->Find("the-last-token").has_value());
  EXPECT_EQ(set->Find("newer-token"), std::nullopt);
}

}  // namespace
}  // namespace fox
