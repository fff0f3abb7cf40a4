// UTF-8 by an independent definition, and what Encode does with text that is none.
#include "models/tokenizer/utf8.h"

#include <gtest/gtest.h>

#include <memory>
#include <utility>
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

// The expected texts are Python's bytes.decode(errors="replace"), and a U+FFFD for each byte. Any
// bytes against the definition: tests/fuzz/models/utf8_fuzzer.cc.
TEST(Utf8Test, ReplacesSubpartsOrBytes) {
  const std::string r = "\xEF\xBF\xBD", face = "\xF0\x9F\x98\x80";
  const struct {
    std::string bytes, subparts, each;
  } kCases[] = {{Bytes({0xF0, 0x9F, 0x98, 'a'}), r + "a", r + r + r + "a"},
                {"\xF0\x9F" + face, r + face, r + r + face},
                {Bytes({0xED, 0xA0, 0x80}), r + r + r, r + r + r},  // a surrogate
                {Bytes({0xC0, 0x80, 'x'}), r + r + "x", r + r + "x"},
                {Bytes({0xE2, 0x82}), r, r + r},
                {r + "x", r + "x", r + "x"}};  // the character itself is well-formed
  for (const auto& c : kCases) {
    for (const auto& [replacement, expected] : {std::pair(Utf8Replacement::kSubpart, c.subparts),
                                                std::pair(Utf8Replacement::kByte, c.each)}) {
      std::string bytes = c.bytes, out;
      DrainUtf8(&bytes, true, replacement, &out);
      EXPECT_EQ(bytes, "");
      EXPECT_EQ(out, expected);
    }
  }
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
