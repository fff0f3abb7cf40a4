// Sets of code points, and the bytes of their UTF-8, as automata read them.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

namespace fox {

inline constexpr int32_t kLastCodePoint = 0x10ffff;

// Ranges of code points, first and last, in any order; they may overlap.
using CodePoints = std::vector<std::pair<int32_t, int32_t>>;

// All other code points, in ascending ranges that neither overlap nor touch.
CodePoints Complement(CodePoints points);

struct ByteRange {
  uint8_t first, last;
};

// The numbers from `first` to `last`, which have `count` digits of `bits` bits each, as
// alternatives, each with a range for every digit, the highest digit first.
std::vector<std::vector<ByteRange>> DigitRanges(int32_t first, int32_t last, int bits, int count);

// The well-formed UTF-8 (RFC 3629) of the characters of a class, as alternatives, each with a range
// for every byte. `bounds`: first and last code point of each range of the class, one after the
// other. `negated`: the class consists of all other characters.
std::vector<std::vector<ByteRange>> Utf8Ranges(const std::vector<int32_t>& bounds, bool negated);

}  // namespace fox
