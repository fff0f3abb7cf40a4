// ReadJson: the whole text or nothing, and nothing larger than its limits.
#include "models/json_reader.h"

#include <gtest/gtest.h>

#include <string>

#include "tests/models/refused.h"

namespace fox {
namespace {

constexpr JsonLimits kLimits{.max_bytes = 64, .max_depth = 3, .max_values = 8};

void ExpectError(const std::string& text, const std::string& problem) {
  SCOPED_TRACE(text);
  ExpectRefused(ReadJson(text, kLimits, "x.json").status(), "x.json: " + problem);
}

TEST(JsonReaderTest, ReadsEveryKindOfValue) {
  const auto json = ReadJson(R"( {"a": [1, -2, 2.5, true, null], "b": "c"} )", kLimits, "x.json");
  ASSERT_TRUE(json.ok()) << json.status();
  EXPECT_EQ(json->dump(), R"({"a":[1,-2,2.5,true,null],"b":"c"})");
  EXPECT_EQ(*ReadJson(" \t\r\n7", kLimits, "x.json"), 7);
}

TEST(JsonReaderTest, NothingFollowsTheValue) {
  for (const std::string value : {"{}", "[1]", "1", "\"a\"", "null"}) {
    EXPECT_TRUE(ReadJson(value + " \t\r\n", kLimits, "x.json").ok()) << value;
    for (const std::string& rest :
         {std::string("x"), std::string(" {}"), std::string("]"), std::string(","),
          std::string("\0", 1), std::string("\0garbage", 8), std::string("\xFF"),
          std::string("\xEF\xBB\xBF")}) {
      ExpectError(value + rest, "not valid JSON");
    }
  }
  ExpectError(std::string("{\"a\": \"b\0c\"}", 12), "not valid JSON");
  for (const char* text : {"", " ", "{", "[1", "\"a", "nul"}) ExpectError(text, "not valid JSON");
}

TEST(JsonReaderTest, DuplicateKeysAreRefusedAtAnyDepth) {
  ExpectError(R"({"a": 1, "a": 1})", "duplicate key \"a\"");
  ExpectError(R"({"b": [{"a": 1, "\u0061": 2}]})", "duplicate key \"a\"");
  EXPECT_TRUE(ReadJson(R"({"a": {"a": {"a": 1}}})", kLimits, "x.json").ok());
}

TEST(JsonReaderTest, LimitsHoldExactly) {
  EXPECT_TRUE(ReadJson(std::string(63, ' ') + "1", kLimits, "x.json").ok());
  ExpectError(std::string(64, ' ') + "1", "larger than 64 bytes");
  EXPECT_TRUE(ReadJson("[[[1]]]", kLimits, "x.json").ok());
  ExpectError("[[[[]]]]", "JSON nested too deeply");
  EXPECT_TRUE(ReadJson("[1,2,3,4,5,6,7]", kLimits, "x.json").ok());  // and the list itself
  ExpectError("[1,2,3,4,5,6,7,8]", "too many JSON values");
}

TEST(JsonReaderTest, NumbersThatOverflowAreRefused) {
  ExpectError("1e999", "not valid JSON");
  EXPECT_EQ(*ReadJson("18446744073709551615", kLimits, "x.json"), 18446744073709551615u);
}

}  // namespace
}  // namespace fox
