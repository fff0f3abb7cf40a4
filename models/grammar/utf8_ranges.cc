// Ranges of numbers are split until the digits of the first and the last one bound the digits of
// all between them. See utf8_ranges.h.
#include "models/grammar/utf8_ranges.h"

#include <algorithm>
#include <utility>

#include "kernels/core/check.h"

namespace fox {
namespace {

// Characters of equally many bytes, and the marks of their first byte. The surrogates, which are no
// characters, separate the third and the fourth range.
struct Length {
  int32_t first, last;
  int bytes;
  uint8_t lead;
};
constexpr Length kLengths[] = {{0, 0x7f, 1, 0},
                               {0x80, 0x7ff, 2, 0xc0},
                               {0x800, 0xd7ff, 3, 0xe0},
                               {0xe000, 0xffff, 3, 0xe0},
                               {0x10000, kLastCodePoint, 4, 0xf0}};

void AddDigitRanges(int32_t first, int32_t last, int bits, int count,
                    std::vector<std::vector<ByteRange>>* out) {
  FOX_CHECK(first <= last);
  for (int behind = bits; behind < bits * count; behind += bits) {
    const int32_t low = (1 << behind) - 1;
    if ((first & ~low) == (last & ~low)) break;
    if ((first & low) != 0) {
      AddDigitRanges(first, first | low, bits, count, out);
      return AddDigitRanges((first | low) + 1, last, bits, count, out);
    }
    if ((last & low) != low) {
      AddDigitRanges(first, (last & ~low) - 1, bits, count, out);
      return AddDigitRanges(last & ~low, last, bits, count, out);
    }
  }
  std::vector<ByteRange>& digits = out->emplace_back();
  for (int behind = bits * (count - 1); behind >= 0; behind -= bits) {
    const auto digit = [=](int32_t number) {
      return static_cast<uint8_t>(number >> behind & ((1 << bits) - 1));
    };
    digits.push_back({digit(first), digit(last)});
  }
}

}  // namespace

std::vector<std::vector<ByteRange>> DigitRanges(int32_t first, int32_t last, int bits, int count) {
  std::vector<std::vector<ByteRange>> out;
  AddDigitRanges(first, last, bits, count, &out);
  return out;
}

CodePoints Complement(CodePoints points) {
  std::sort(points.begin(), points.end());
  CodePoints out;
  int32_t next = 0;  // the first code point behind the ranges so far
  for (const auto& [first, last] : points) {
    if (first > next) out.emplace_back(next, first - 1);
    next = std::max(next, last + 1);
  }
  if (next <= kLastCodePoint) out.emplace_back(next, kLastCodePoint);
  return out;
}

std::vector<std::vector<ByteRange>> Utf8Ranges(const std::vector<int32_t>& bounds, bool negated) {
  FOX_CHECK(bounds.size() % 2 == 0);
  CodePoints listed;
  for (size_t i = 0; i < bounds.size(); i += 2) listed.emplace_back(bounds[i], bounds[i + 1]);
  CodePoints wanted = Complement(std::move(listed));
  if (!negated) wanted = Complement(std::move(wanted));
  std::vector<std::vector<ByteRange>> out;
  for (const auto& [first, last] : wanted) {
    for (const auto& [least, most, count, lead] : kLengths) {
      const int32_t from = std::max(first, least), to = std::min(last, most);
      if (from > to) continue;
      for (std::vector<ByteRange>& way : DigitRanges(from, to, count == 1 ? 7 : 6, count)) {
        for (ByteRange& byte : way) {
          const uint8_t mark = &byte == &way.front() ? lead : 0x80;
          byte = {static_cast<uint8_t>(byte.first | mark), static_cast<uint8_t>(byte.last | mark)};
        }
        out.push_back(std::move(way));
      }
    }
  }
  return out;
}

}  // namespace fox
