// Ranges of characters are split until the bytes of the first and the last one bound the bytes of
// all between them. See utf8_ranges.h.
#include "models/grammar/utf8_ranges.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "kernels/core/check.h"

namespace fox {
namespace {

// Characters of equally many bytes. The surrogates, which are no characters, separate the third and
// the fourth range.
constexpr std::pair<int32_t, int32_t> kLengths[] = {
    {0, 0x7f}, {0x80, 0x7ff}, {0x800, 0xd7ff}, {0xe000, 0xffff}, {0x10000, kLastCodePoint}};

static_assert(std::is_sorted(std::begin(kLengths), std::end(kLengths)));

std::vector<uint8_t> Encode(int32_t point) {
  const auto tail = [point](int shift) {
    return static_cast<uint8_t>(0x80 | (point >> shift & 0x3f));
  };
  if (point < 0x80) return {static_cast<uint8_t>(point)};
  if (point < 0x800) return {static_cast<uint8_t>(0xc0 | point >> 6), tail(0)};
  if (point < 0x10000) return {static_cast<uint8_t>(0xe0 | point >> 12), tail(6), tail(0)};
  return {static_cast<uint8_t>(0xf0 | point >> 18), tail(12), tail(6), tail(0)};
}

// Appends the alternatives of `first` to `last`. REQUIRES: both have equally many bytes.
void Add(int32_t first, int32_t last, std::vector<std::vector<ByteRange>>* out) {
  FOX_CHECK(first <= last);
  for (int bits = 6; bits < 6 * static_cast<int>(Encode(first).size()); bits += 6) {
    const int32_t low = (1 << bits) - 1;
    if ((first & ~low) == (last & ~low)) break;
    if ((first & low) != 0) {
      Add(first, first | low, out);
      return Add((first | low) + 1, last, out);
    }
    if ((last & low) != low) {
      Add(first, (last & ~low) - 1, out);
      return Add(last & ~low, last, out);
    }
  }
  const std::vector<uint8_t> from = Encode(first), to = Encode(last);
  FOX_CHECK(from.size() == to.size());
  std::vector<ByteRange>& bytes = out->emplace_back();
  for (size_t i = 0; i < from.size(); ++i) bytes.push_back({from[i], to[i]});
}

}  // namespace

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
    for (const auto& [least, most] : kLengths) {
      const int32_t from = std::max(first, least), to = std::min(last, most);
      if (from <= to) Add(from, to, &out);
    }
  }
  return out;
}

}  // namespace fox
