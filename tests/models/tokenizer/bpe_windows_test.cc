// Windows are whole characters, and a character that cannot be encoded ends the encoding. Random
// tables and texts: tests/fuzz/models/bpe_fuzzer.cc.
#include "models/tokenizer/bpe_windows.h"

#include <gtest/gtest.h>

#include <string>

namespace fox {
namespace {

TEST(BpeWindowsTest, WindowsAreWholeCharactersAndTokensMayShareOne) {
  std::string text;
  while (text.size() < 500) text += "\u00e9\u65e5\U0001F600x";
  const auto encode = [&](std::string_view window, std::vector<WindowToken>* tokens) {
    EXPECT_NE(static_cast<uint8_t>(window.front()) & 0xC0, 0x80);
    size_t begin = 0;
    for (size_t at = 1; at <= window.size(); ++at) {
      if (at < window.size() && (static_cast<uint8_t>(window[at]) & 0xC0) == 0x80) continue;
      // A token for each byte of the character.
      for (size_t i = begin; i < at; ++i) {
        tokens->push_back({static_cast<uint8_t>(window[i]), i + 1 == at ? at : begin});
      }
      begin = at;
    }
    return true;
  };
  std::vector<int32_t> ids, bytes;
  ASSERT_TRUE(EncodeInWindows(text, 50, 0, encode, &ids));
  for (const char byte : text) bytes.push_back(static_cast<uint8_t>(byte));
  EXPECT_EQ(ids, bytes);
}

TEST(BpeWindowsTest, AFailureEndsIt) {
  int calls = 0;
  const auto encode = [&](std::string_view, std::vector<WindowToken>*) { return ++calls < 1; };
  std::vector<int32_t> ids;
  EXPECT_FALSE(EncodeInWindows("aaaa", 64, 0, encode, &ids));
  EXPECT_EQ(calls, 1);
}

}  // namespace
}  // namespace fox
