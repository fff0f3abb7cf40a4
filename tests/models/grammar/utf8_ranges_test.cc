// Classes of characters as bytes, against the table of RFC 3629 (section 4) and the encoding of the
// C++ library.
#include "models/grammar/utf8_ranges.h"

#include <codecvt>
#include <locale>
#include <string>

#include "gtest/gtest.h"

namespace fox {
namespace {

using Sequences = std::vector<std::vector<ByteRange>>;

int Matches(const Sequences& sequences, const std::string& bytes) {
  int found = 0;
  for (const auto& ranges : sequences) {
    bool is = ranges.size() == bytes.size();
    for (size_t i = 0; is && i < ranges.size(); ++i) {
      const auto byte = static_cast<uint8_t>(bytes[i]);
      is = ranges[i].first <= byte && byte <= ranges[i].last;
    }
    found += is ? 1 : 0;
  }
  return found;
}

TEST(Utf8RangesTest, AllCharactersAreTheTableOfTheRfc) {
  const std::vector<std::vector<std::pair<int, int>>> kTable = {
      {{0, 0x7f}},
      {{0xc2, 0xdf}, {0x80, 0xbf}},
      {{0xe0, 0xe0}, {0xa0, 0xbf}, {0x80, 0xbf}},
      {{0xe1, 0xec}, {0x80, 0xbf}, {0x80, 0xbf}},
      {{0xed, 0xed}, {0x80, 0x9f}, {0x80, 0xbf}},
      {{0xee, 0xef}, {0x80, 0xbf}, {0x80, 0xbf}},
      {{0xf0, 0xf0}, {0x90, 0xbf}, {0x80, 0xbf}, {0x80, 0xbf}},
      {{0xf1, 0xf3}, {0x80, 0xbf}, {0x80, 0xbf}, {0x80, 0xbf}},
      {{0xf4, 0xf4}, {0x80, 0x8f}, {0x80, 0xbf}, {0x80, 0xbf}}};
  const Sequences all = Utf8Ranges({}, true);
  ASSERT_EQ(all.size(), kTable.size());
  for (size_t i = 0; i < all.size(); ++i) {
    ASSERT_EQ(all[i].size(), kTable[i].size()) << i;
    for (size_t j = 0; j < all[i].size(); ++j) {
      EXPECT_EQ((std::pair<int, int>(all[i][j].first, all[i][j].last)), kTable[i][j]) << i;
    }
  }
}

TEST(Utf8RangesTest, ACharacterIsInAClassOrInItsComplement) {
  std::wstring_convert<std::codecvt_utf8<char32_t>, char32_t> utf8;
  const std::vector<std::vector<int32_t>> kClasses = {
      {'a', 'z'},       {0xe0, 0xfc},           {0x3041, 0x309f},     {0x7f, 0x80, 'x', 'x'},
      {0x700, 0x10005}, {0xd000, 0xe100, 5, 9}, {0x10ffff, 0x10ffff}, {'b', 'd', 'c', 'f'}};
  for (size_t i = 0; i < kClasses.size(); ++i) {
    const Sequences in = Utf8Ranges(kClasses[i], false), out = Utf8Ranges(kClasses[i], true);
    for (char32_t point = 0; point <= 0x10ffff; point += point < 0x3000 ? 1 : 37) {
      if (point >= 0xd800 && point <= 0xdfff) continue;
      bool is_listed = false;
      for (size_t at = 0; at < kClasses[i].size(); at += 2) {
        is_listed |= static_cast<char32_t>(kClasses[i][at]) <= point &&
                     point <= static_cast<char32_t>(kClasses[i][at + 1]);
      }
      const std::string bytes = utf8.to_bytes(point);
      ASSERT_EQ(Matches(in, bytes), is_listed ? 1 : 0) << i << ": " << static_cast<int>(point);
      ASSERT_EQ(Matches(out, bytes), is_listed ? 0 : 1) << i << ": " << static_cast<int>(point);
    }
  }
}

}  // namespace
}  // namespace fox
