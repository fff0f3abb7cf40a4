// TextAssembler, a byte a token. Random texts and stops against a search of the whole text:
// tests/fuzz/models/text_assembler_fuzzer.cc.
#include "models/tokenizer/text_assembler.h"

#include <gtest/gtest.h>

namespace fox {
namespace {

// Ids below 256 are bytes.
class ByteTokenizer final : public Tokenizer {
 public:
  ByteTokenizer() { info_.vocab_size = 256; }
  absl::StatusOr<std::vector<int32_t>> Encode(const std::string& text, bool) const override {
    return std::vector<int32_t>(text.begin(), text.end());
  }
  std::string TokenBytes(int32_t id, bool) const override {
    return std::string(1, static_cast<char>(id));
  }
  const Info& info() const override { return info_; }

 private:
  Info info_;
};

TEST(TextAssemblerTest, NothingFollowsAStop) {
  const ByteTokenizer tokenizer;
  TextAssembler assembler(tokenizer, true, {"b"}, false);
  EXPECT_EQ(assembler.Push('a').text, "a");
  EXPECT_EQ(assembler.Push('b').stop, 0);
  EXPECT_EQ(assembler.Push('c').text, "");
  EXPECT_EQ(assembler.Finish().text, "");
}

TEST(TextAssemblerTest, TokensThatMayNotStopAreShown) {
  const ByteTokenizer tokenizer;
  TextAssembler assembler(tokenizer, true, {"ab"}, false);
  std::string shown = assembler.Push('a', false).text;
  const TextAssembler::Shown ignored = assembler.Push('b', false);
  EXPECT_EQ(ignored.stop, -1);
  shown += ignored.text;
  shown += assembler.Push('c', false).text;
  EXPECT_EQ(shown, "abc");
  shown += assembler.Push('a').text;
  const TextAssembler::Shown piece = assembler.Push('b');
  EXPECT_EQ(piece.stop, 0);
  EXPECT_EQ(shown + piece.text, "abc");
}

TEST(TextAssemblerTest, SplitCharactersAndStopsOfSeveralBytes) {
  const ByteTokenizer tokenizer;
  const std::string text = "caf\xc3\xa9\xe2\x80\xa6 end";
  TextAssembler assembler(tokenizer, true, {"\xe2\x80\xa6"}, false);
  std::string shown;
  int stop = -1;
  for (char c : text) {
    const TextAssembler::Shown piece = assembler.Push(static_cast<unsigned char>(c));
    shown += piece.text;
    if (piece.stop >= 0) stop = piece.stop;
  }
  EXPECT_EQ(stop, 0);
  EXPECT_EQ(shown, "caf\xc3\xa9");
}

}  // namespace
}  // namespace fox
