// GPT-2's alphabet by its definition: 188 bytes stand for themselves, the others are numbered.
#include "models/tokenizer/byte_alphabet.h"

#include <gtest/gtest.h>

#include "models/tokenizer/utf8.h"

namespace fox {
namespace {

TEST(ByteAlphabetTest, CharactersOfAllBytes) {
  uint32_t next = 0x100;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) ||
                           (byte >= 0xAE && byte <= 0xFF);
    std::string expected;
    AppendUtf8(printable ? byte : next++, &expected);
    EXPECT_EQ(CharacterOfByte(static_cast<uint8_t>(byte)), expected) << byte;
    EXPECT_EQ(BytesOfToken(expected), std::string(1, static_cast<char>(byte))) << byte;
  }
  EXPECT_EQ(next, 0x144u);
}

TEST(ByteAlphabetTest, OtherCharactersStandForNothing) {
  EXPECT_EQ(BytesOfToken(""), "");
  EXPECT_EQ(BytesOfToken("\u0120ab"), " ab");
  for (const std::string token : {" ", "a b", "\n", "\u00ad", "\u0144", "\u20ac", "\U0001f600"}) {
    EXPECT_EQ(BytesOfToken(token), std::nullopt) << token;
  }
}

}  // namespace
}  // namespace fox
