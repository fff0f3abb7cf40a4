// Malformed escapes. Well-formed ones are in tokenizer_vectors_test.cc, cut ones in
// token_stream_test.cc.
#include "models/tokenizer/json_escape.h"

#include <gtest/gtest.h>

namespace fox {
namespace {

// A malformed escape is kept as it is.
TEST(JsonEscapeTest, UnescapingLosesNothing) {
  const auto unescape = [](std::string text) {
    std::string out;
    JsonUnescape(&text, true, &out);
    EXPECT_EQ(text, "");
    return out;
  };
  EXPECT_EQ(unescape("\\q \\u12g4 \\"), "\\q \\u12g4 \\");
  EXPECT_EQ(unescape("\\b\\f\\n\\r\\t\\/\\\\\\\""), "\b\f\n\r\t/\\\"");
  EXPECT_EQ(unescape("\\u00E9\\u0000"), std::string("\xC3\xA9\0", 3));
  EXPECT_EQ(unescape("\\udc00\\ud800\\ud800\\udc00"), "\xEF\xBF\xBD\xEF\xBF\xBD\xF0\x90\x80\x80");
  EXPECT_EQ(unescape("\\ud800\\u0041"),
            "\xEF\xBF\xBD"
            "A");
  EXPECT_EQ(unescape("\"\xFF\\u"), "\"\xEF\xBF\xBD\\u");
}

}  // namespace
}  // namespace fox
