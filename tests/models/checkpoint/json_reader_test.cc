// ReadJson: the whole text or nothing, and nothing larger than its limits. Any text against the
// library: tests/fuzz/models/json_reader_fuzzer.cc.
#include "models/checkpoint/json_reader.h"

#include <gtest/gtest.h>

#include "tests/models/refused.h"

namespace fox {
namespace {

constexpr JsonLimits kLimits{.max_bytes = 64, .max_depth = 3, .max_values = 8};

void ExpectError(const std::string& text, const std::string& problem) {
  SCOPED_TRACE(text);
  ExpectRefused(ReadJson(text, kLimits, "x.json").status(), "x.json: " + problem);
}

TEST(JsonReaderTest, TheWholeTextOrNothing) {
  EXPECT_EQ(*ReadJson(" \t\r\n7 \t\r\n", kLimits, "x.json"), 7);
  for (const std::string& text :
       {std::string(), std::string("{} {}"), std::string("{}\0", 3), std::string("[1]\xEF\xBB\xBF"),
        std::string("{\"a\": \"b\0c\"}", 12)}) {
    ExpectError(text, "not valid JSON");
  }
  ExpectError("1e999", "a number too large for a double");  // valid by RFC 8259, section 6
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

// The order of names and the text of numbers, which a double would not keep.
TEST(JsonReaderTest, ExactJsonIsWrittenAsItWasRead) {
  const std::string text =
      R"({"b": [18446744073709551615, 25000000000000000001, -9223372036854775809, 0.1, 1.50, 1E2],)"
      R"( "a": {"\"": "\n/\u0001", "": null, "e": [], "o": {}}, "t": true})";
  const JsonLimits limits = {1000, 5, 100};
  const auto json = ReadExactJson(text, limits, "x");
  ASSERT_TRUE(json.ok()) << json.status();
  EXPECT_EQ(TextOf(*json, /*spaced=*/true), text);
  EXPECT_EQ(TextOf(*ReadExactJson(R"([1, {"a": 2}])", limits, "x"), false), R"([1,{"a":2}])");
  // As Python's json.dumps(json.loads(text), ensure_ascii=False) prints it: no needless escape.
  EXPECT_EQ(
      TextOf(*ReadExactJson("\xef\xbb\xbf[-0,-0.0,\"\\u00e9\\ud83e\\udd8a\\/\"]", limits, "x"),
             true),
      "[0, -0.0, \"\u00e9\U0001f98a/\"]");
  for (const char* bad : {R"({"a": 1, "b": 2, "a": 3})", "[[[[[[1]]]]]]", "[1] 2", "1E999"}) {
    EXPECT_FALSE(ReadExactJson(bad, limits, "x").ok()) << bad;
  }
}

}  // namespace
}  // namespace fox
