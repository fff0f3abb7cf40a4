// Untrusted bytes in an error message: one printable line of bounded length.
#include "models/checkpoint/error_text.h"

#include <gtest/gtest.h>

namespace fox {
namespace {

TEST(ErrorTextTest, OnlyPrintableAsciiRemains) {
  for (int byte = 0; byte < 256; ++byte) {
    const std::string text(1, static_cast<char>(byte));
    EXPECT_EQ(Printable(text), byte >= 32 && byte < 127 ? text : "?") << byte;
  }
  EXPECT_EQ(Quoted("a\nb"), "\"a?b\"");
}

TEST(ErrorTextTest, LongTextIsCut) {
  EXPECT_EQ(Printable(std::string(120, 'x')), std::string(120, 'x'));
  EXPECT_EQ(Printable(std::string(121, 'x')), std::string(120, 'x') + "...");
  EXPECT_EQ(Quoted(std::string(1 << 20, '\n')), "\"" + std::string(120, '?') + "...\"");
}

}  // namespace
}  // namespace fox
