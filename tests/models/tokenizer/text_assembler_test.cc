// TextAssembler against a reference that searches the whole text again after each byte.
#include "models/tokenizer/text_assembler.h"

#include <gtest/gtest.h>

#include <random>

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

struct Expected {
  std::string text;
  int stop = -1;
};

// The match that ends first; of those that end together the longest.
Expected Reference(const std::string& text, const std::vector<std::string>& stops, bool include) {
  for (size_t end = 1; end <= text.size(); ++end) {
    int best = -1;
    for (size_t i = 0; i < stops.size(); ++i) {
      const std::string& stop = stops[i];
      if (stop.size() > end || text.compare(end - stop.size(), stop.size(), stop) != 0) continue;
      if (best < 0 || stop.size() > stops[static_cast<size_t>(best)].size()) {
        best = static_cast<int>(i);
      }
    }
    if (best < 0) continue;
    return {text.substr(0, end - (include ? 0 : stops[static_cast<size_t>(best)].size())), best};
  }
  return {text, -1};
}

// Longest end of `text` that begins a stop string.
size_t MustHold(const std::string& text, const std::vector<std::string>& stops) {
  size_t longest = 0;
  for (const std::string& stop : stops) {
    for (size_t n = 1; n <= std::min(stop.size(), text.size()); ++n) {
      if (text.compare(text.size() - n, n, stop, 0, n) == 0) longest = std::max(longest, n);
    }
  }
  return longest;
}

std::string RandomText(std::mt19937& random, size_t most, int letters) {
  std::string text(random() % (most + 1), ' ');
  for (char& c : text) c = static_cast<char>('a' + random() % static_cast<unsigned>(letters));
  return text;
}

TEST(TextAssemblerTest, AgreesWithTheReferenceOnRandomText) {
  const ByteTokenizer tokenizer;
  std::mt19937 random(7);
  int stopped = 0;
  for (int round = 0; round < 20000; ++round) {
    std::vector<std::string> stops;
    for (size_t n = random() % 5; n > 0; --n) {
      stops.push_back(RandomText(random, 5, 2) + (random() % 2 == 0 ? "a" : "b"));
    }
    const bool include = random() % 2 == 0;
    const std::string text = RandomText(random, 40, 2 + static_cast<int>(random() % 2));
    const Expected expected = Reference(text, stops, include);
    TextAssembler assembler(tokenizer, true, stops, include);
    std::string shown;
    int stop = -1;
    for (size_t i = 0; i < text.size() && stop < 0; ++i) {
      const TextAssembler::Shown piece = assembler.Push(text[i]);
      shown += piece.text;
      stop = piece.stop;
      if (stop < 0) {  // neither too much nor too little is shown
        EXPECT_EQ(shown.size(), i + 1 - MustHold(text.substr(0, i + 1), stops));
      }
    }
    const TextAssembler::Shown last = assembler.Finish();
    shown += last.text;
    ASSERT_EQ(shown, expected.text) << "round " << round;
    if (stop >= 0) {
      ++stopped;
      EXPECT_EQ(stops[static_cast<size_t>(stop)], stops[static_cast<size_t>(expected.stop)]);
      EXPECT_EQ(last.stop, -1);
    } else {
      EXPECT_EQ(expected.stop, -1);
    }
  }
  EXPECT_GT(stopped, 1000);
}

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
