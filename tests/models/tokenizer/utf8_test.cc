// Every code point, and what Encode does with text that is not UTF-8. Any bytes against the
// definition, and their replacement: tests/fuzz/models/utf8_fuzzer.cc.
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
    ASSERT_EQ(unit.length, text.size()) << c;
    for (size_t n = 1; n < text.size(); ++n) {
      ASSERT_EQ(NextUtf8(text.data(), n).kind, Utf8Kind::kIncomplete) << c;
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
        ASSERT_EQ(ids.status().code(), absl::StatusCode::kInvalidArgument) << first << second;
      }
    }
  }
}

}  // namespace
}  // namespace fox
