// UTF-8 by an independent definition, and what Encode does with text that is none.
#include "models/tokenizer/utf8.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "tests/models/tokenizer/test_files.h"

namespace fox {
namespace {

std::string Bytes(std::initializer_list<int> values) {
  std::string out;
  for (const int value : values) out.push_back(static_cast<char>(value));
  return out;
}

TEST(Utf8Test, EveryCodePointRoundTrips) {
  for (uint32_t c = 0; c < 0x110000; ++c) {
    if (c >= 0xD800 && c < 0xE000) continue;
    std::string text;
    AppendUtf8(c, &text);
    const Utf8Unit unit = NextUtf8(text.data(), text.size());
    ASSERT_EQ(unit.kind, Utf8Kind::kValid) << c;
    ASSERT_EQ(unit.code_point, c);
    ASSERT_EQ(unit.length, text.size());
    for (size_t n = 1; n < text.size(); ++n) {
      ASSERT_EQ(NextUtf8(text.data(), n).kind, Utf8Kind::kIncomplete) << c;
    }
  }
}

TEST(Utf8Test, SurrogatesAndOverlongFormsAreInvalid) {
  for (const std::string& bytes :
       {Bytes({0xED, 0xA0, 0x80}), Bytes({0xED, 0xBF, 0xBF}), Bytes({0xC0, 0x80}),
        Bytes({0xC1, 0xBF}), Bytes({0xE0, 0x9F, 0xBF}), Bytes({0xF0, 0x8F, 0xBF, 0xBF}),
        Bytes({0xF4, 0x90, 0x80, 0x80}), Bytes({0xF5, 0x80, 0x80, 0x80}), Bytes({0x80})}) {
    EXPECT_FALSE(IsValidUtf8(bytes));
    EXPECT_FALSE(IsValidUtf8("a long text in front of it" + bytes));
  }
  EXPECT_TRUE(IsValidUtf8(std::string("a\0b", 3)));
}

std::string Replaced(std::string bytes, Utf8Replacement replacement) {
  std::string out;
  DrainUtf8(&bytes, true, replacement, &out);
  EXPECT_EQ(bytes, "");
  return out;
}

// The expected texts are Python's bytes.decode(errors="replace").
TEST(Utf8Test, ReplacesMaximalSubparts) {
  const std::string r = "\xEF\xBF\xBD";
  const auto replaced = [](const std::string& bytes) {
    return Replaced(bytes, Utf8Replacement::kSubpart);
  };
  EXPECT_EQ(replaced(Bytes({0xF0, 0x9F, 0x98, 'a'})), r + "a");
  EXPECT_EQ(replaced(Bytes({0xF0, 0x9F, 0xF0, 0x9F, 0x98, 0x80})), r + "\xF0\x9F\x98\x80");
  EXPECT_EQ(replaced(Bytes({0xED, 0xA0, 0x80})), r + r + r);
  EXPECT_EQ(replaced(Bytes({0xC0, 0x80, 'x'})), r + r + "x");
  EXPECT_EQ(replaced(Bytes({0xE2, 0x82})), r);
}

TEST(Utf8Test, ReplacesBytes) {
  const std::string r = "\xEF\xBF\xBD";
  const auto replaced = [](const std::string& bytes) {
    return Replaced(bytes, Utf8Replacement::kByte);
  };
  EXPECT_EQ(replaced(Bytes({0xF0, 0x9F, 0x98, 'a'})), r + r + r + "a");
  EXPECT_EQ(replaced(Bytes({0xF0, 0x9F, 0xF0, 0x9F, 0x98, 0x80})), r + r + "\xF0\x9F\x98\x80");
  EXPECT_EQ(replaced(Bytes({0xE2, 0x82})), r + r);
  EXPECT_EQ(replaced("\xEF\xBF\xBDx"), r + "x");  // the character itself is well-formed
}

// A two-byte text is valid if both bytes are ASCII, or it is a two-byte sequence.
TEST(Utf8Test, EncodeRefusesEveryInvalidPairOfBytes) {
  std::vector<std::unique_ptr<Tokenizer>> tokenizers;
  tokenizers.push_back(LoadGpt2("{}"));
  tokenizers.push_back(LoadLongCrawl64());
  tokenizers.push_back(LoadDemo());
  for (int first = 0; first < 256; ++first) {
    for (int second = 0; second < 256; ++second) {
      const bool valid = (first < 0x80 && second < 0x80) ||
                         (first >= 0xC2 && first < 0xE0 && second >= 0x80 && second < 0xC0);
      const std::string text = Bytes({first, second});
      ASSERT_EQ(IsValidUtf8(text), valid) << first << " " << second;
      for (const auto& tokenizer : tokenizers) {
        const auto ids = tokenizer->Encode(text, true);
        ASSERT_EQ(ids.ok(), valid) << first << " " << second;
        if (valid) continue;
        ASSERT_EQ(ids.status().code(), absl::StatusCode::kInvalidArgument);
      }
    }
  }
}

}  // namespace
}  // namespace fox
