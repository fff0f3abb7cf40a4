// TokenSet: valid and invalid files, tokens that are found, and files that are replaced.
#include "server/calls/access/token_set.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>

#include "absl/strings/str_cat.h"
#include "tests/engine/eval/run_program.h"

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
  std::string content = "# operators\r\n\n  first-token \r\nsecond-token\nthird-token-half";
  WriteWhole(path, content);
  const auto set = TokenSet::Load(path).value();
  EXPECT_EQ(set->size(), 2u);
  const std::optional<uint64_t> first = set->Find("first-token"),
                                second = set->Find("second-token");
  ASSERT_TRUE(first.has_value() && second.has_value());
  EXPECT_NE(*first, *second);
  EXPECT_EQ(set->Find("first-token"), first);
  for (const char* wrong : {"", "first", "first-token ", "FIRST-TOKEN", "first-token\nsecond-token",
                            "# operators", "first-tokem", "third-token-half"}) {
    EXPECT_EQ(set->Find(wrong), std::nullopt) << wrong;
  }
}

TEST(TokenSetTest, WrongFilesAreRefusedWithoutTellingTokens) {
  EXPECT_THAT(ErrorOf(""), HasSubstr("no token"));
  EXPECT_THAT(ErrorOf("# none\n\n"), HasSubstr("no token"));
  EXPECT_THAT(ErrorOf("a-whole-token"), HasSubstr("up to its newline"));
  for (const std::string& line :
       {std::string("short"), std::string("with spaces in it"),
        std::string("umlaut-\xc3\xa4\xc3\xa4"), std::string("nul\0inside", 10),
        std::string(TokenSet::kMaxTokenBytes + 1, 'x')}) {
    const std::string error = ErrorOf("long-enough\n" + line + "\n");
    EXPECT_THAT(error, HasSubstr("line 2"));
    EXPECT_THAT(error, Not(HasSubstr(line)));
  }
  std::string many;
  for (size_t i = 0; i < TokenSet::kMaxTokens; ++i) {
    absl::StrAppend(&many, "token-", 10000 + i, "\n");
  }
  EXPECT_EQ(ErrorOf(many), "");
  EXPECT_THAT(ErrorOf(many + "one-more\n"), HasSubstr("more than"));
  EXPECT_THAT(std::string(TokenSet::Load("/nowhere").status().message()),
              HasSubstr("cannot be read"));
}

TEST(TokenSetTest, ANewFileCountsAWrongOneDoesNotAndAnEmptyOneLeavesNoToken) {
  const std::string path = TempPath("tokens");
  WriteWhole(path, "old-token\n");
  const auto set = TokenSet::Load(path, /*interval=*/0).value();
  for (const char* wrong : {"x\n", "short\nlong-enough\n"}) {
    SCOPED_TRACE(wrong);
    WriteWhole(path, "newer-token\n");
    EXPECT_TRUE(set->Find("newer-token").has_value());
    EXPECT_EQ(set->Find("old-token"), std::nullopt);
    WriteWhole(path, wrong);
    EXPECT_TRUE(set->Find("newer-token").has_value());
  }
  for (const char* nothing : {"", "\n", "# none\n", "newer-token"}) {
    WriteWhole(path, nothing);
    EXPECT_EQ(set->Find("newer-token"), std::nullopt) << nothing;
    WriteWhole(path, "newer-token\n");
    EXPECT_TRUE(set->Find("newer-token").has_value()) << "after " << nothing;
  }
  std::remove(path.c_str());
  EXPECT_EQ(set->Find("newer-token"), std::nullopt);
  EXPECT_EQ(set->size(), 0u);
  WriteWhole(path, "another-token\n");
  EXPECT_TRUE(set->Find("another-token").has_value());
}

// A writer that is slower than the reader: no part of a token is one.
TEST(TokenSetTest, WhatIsWrittenInPlaceIsNeverHalfAToken) {
  const std::string path = TempPath("tokens"), token = "0123456789abcdef0123456789abcdef";
  WriteWhole(path, token + "\n");
  const auto set = TokenSet::Load(path, /*interval=*/0).value();
  const std::string content = "first-of-two-tokens\n" + token + "\n";
  for (size_t size = 0; size <= content.size(); ++size) {
    WriteWhole(path, content.substr(0, size));
    for (size_t part = TokenSet::kMinTokenBytes; part < token.size(); ++part) {
      ASSERT_EQ(set->Find(token.substr(0, part)), std::nullopt) << size;
    }
    ASSERT_EQ(set->Find(token).has_value(), size == content.size()) << size;
  }
}

}  // namespace
}  // namespace fox
