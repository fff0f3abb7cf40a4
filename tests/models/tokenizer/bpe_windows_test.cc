// Windows against whole texts: random merge tables, sensible and not, over random and periodic
// texts, with windows of a few bytes.
#include "models/tokenizer/bpe_windows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "models/tokenizer/bpe_merger.h"

namespace fox {
namespace {

// Merge rules over the letters a, b, .. and what they give for a text.
class Bpe {
 public:
  // With `trained`, each rule merges texts that exist already, as training does; else pairs of any
  // tokens in any order, so that late merges enable early ones.
  Bpe(std::mt19937& rng, int letters, int rules, bool trained) {
    for (int i = 0; i < letters; ++i) texts_.emplace_back(1, static_cast<char>('a' + i));
    std::vector<std::pair<int32_t, int32_t>> pairs;
    for (int i = 0; i < rules; ++i) {
      const auto left = static_cast<int32_t>(rng() % texts_.size());
      const auto right = static_cast<int32_t>(rng() % texts_.size());
      std::string text = Text(left) + Text(right);
      if (text.size() > 12) continue;
      pairs.emplace_back(left, right);
      texts_.push_back(std::move(text));
    }
    std::vector<size_t> order(pairs.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    if (!trained) std::shuffle(order.begin(), order.end(), rng);
    for (const size_t i : order) {
      merger_.AddRule(pairs[i].first, pairs[i].second,
                      static_cast<int32_t>(i) + static_cast<int32_t>(letters));
    }
  }

  std::vector<int32_t> Whole(std::string_view text) const {
    std::vector<int32_t> ids;
    for (const char letter : text) ids.push_back(letter - 'a');
    BpeMerger::Workspace workspace;
    merger_.Merge(&ids, &workspace);
    return ids;
  }

  // Counts the windows, and of them those longer than `window_bytes`.
  std::vector<int32_t> InWindows(const std::string& text, size_t window_bytes) {
    std::vector<int32_t> ids = {-7};  // what is there stays
    const auto encode = [&](std::string_view window, std::vector<WindowToken>* tokens) {
      ++windows;
      if (window.size() > window_bytes) ++grown;
      size_t end = 0;
      for (const int32_t id : Whole(window)) {
        end += Text(id).size();
        tokens->push_back({id, end});
      }
      return true;
    };
    EXPECT_TRUE(EncodeInWindows(text, window_bytes, 0, encode, &ids));
    EXPECT_EQ(ids.front(), -7);
    ids.erase(ids.begin());
    return ids;
  }

  int64_t windows = 0, grown = 0;

 private:
  const std::string& Text(int32_t id) const { return texts_[static_cast<size_t>(id)]; }

  std::vector<std::string> texts_;  // by id
  BpeMerger merger_;
};

std::string RandomText(std::mt19937& rng, int letters, size_t size) {
  std::string text;
  const size_t period = rng() % 3 == 0 ? 1 + rng() % 9 : size;
  for (size_t i = 0; i < size; ++i) {
    const auto letter = static_cast<char>('a' + rng() % static_cast<unsigned>(letters));
    text.push_back(i < period ? letter : text[i - period]);
  }
  return text;
}

TEST(BpeWindowsTest, TokensAreThoseOfTheWhole) {
  std::mt19937 rng(3);
  int64_t windows = 0, grown = 0, merged = 0;
  for (int table = 0; table < 600; ++table) {
    const int letters = 1 + static_cast<int>(rng() % 4);
    Bpe bpe(rng, letters, 1 + static_cast<int>(rng() % 40), table % 2 == 0);
    for (int round = 0; round < 10; ++round) {
      const std::string text = RandomText(rng, letters, rng() % 400);
      const std::vector<int32_t> whole = bpe.Whole(text);
      ASSERT_EQ(bpe.InWindows(text, 8 + rng() % 60), whole) << text;
      merged += static_cast<int64_t>(text.size() - whole.size());
    }
    windows += bpe.windows;
    grown += bpe.grown;
  }
  EXPECT_GT(windows, 20000);
  EXPECT_GT(grown, 200);
  EXPECT_GT(merged, 300000);
}

// Rules that eat a run of letters from its right end: what the first token is depends on how long
// the run is, so no place before its end is safe.
TEST(BpeWindowsTest, ARunThatDependsOnItsEndIsOneWindow) {
  const auto encode = [](std::string_view window, std::vector<WindowToken>* tokens) {
    // "aa" from the right: an odd run leaves a single a in front.
    const size_t first = window.size() % 2;
    if (first == 1) tokens->push_back({1, 1});
    for (size_t end = first + 2; end <= window.size(); end += 2) tokens->push_back({2, end});
    return true;
  };
  std::vector<int32_t> ids;
  ASSERT_TRUE(EncodeInWindows(std::string(1001, 'a'), 64, 0, encode, &ids));
  EXPECT_EQ(ids.size(), 501u);
  EXPECT_EQ(ids.front(), 1);
}

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

TEST(BpeWindowsTest, WithoutLookaheadATextIsOneWindow) {
  int calls = 0;
  const auto encode = [&](std::string_view window, std::vector<WindowToken>* tokens) {
    ++calls;
    tokens->push_back({5, window.size()});
    return true;
  };
  std::vector<int32_t> ids;
  EXPECT_TRUE(EncodeInWindows(std::string(1000, 'a'), 64, std::nullopt, encode, &ids));
  EXPECT_EQ(ids, (std::vector<int32_t>{5}));
  EXPECT_EQ(calls, 1);
}

}  // namespace
}  // namespace fox
