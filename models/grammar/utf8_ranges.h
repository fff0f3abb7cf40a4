// Classes of characters as bytes of UTF-8, as automata read them.
#pragma once

#include <cstdint>
#include <vector>

namespace fox {

inline constexpr int32_t kLastCodePoint = 0x10ffff;

struct ByteRange {
  uint8_t first, last;
};

// The well-formed UTF-8 (RFC 3629) of the code points of a class, as alternatives: each has a range
// for each of its bytes. `bounds`: first and last code point of a range, and so on. `negated`: of
// all other code points.
std::vector<std::vector<ByteRange>> Utf8Ranges(const std::vector<int32_t>& bounds, bool negated);

}  // namespace fox
