// Encoding of text that is not UTF-8. Any bytes against the definition, and their replacement:
// tests/fuzz/models/utf8_fuzzer.cc.
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
