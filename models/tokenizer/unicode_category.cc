// Categories of code points by binary search over runs; ASCII by a table. See unicode_category.h.
#include "models/tokenizer/unicode_category.h"

#include <algorithm>
#include <array>
#include <iterator>

namespace fox {
namespace {

constexpr uint32_t kRuns[] = {
#include "models/tokenizer/unicode_category.inc"
};

UnicodeCategory Search(uint32_t code_point) {
  // The last run that starts at or before the code point; its category is in the two low bits.
  const uint32_t* run = std::upper_bound(std::begin(kRuns), std::end(kRuns), code_point * 4 + 3);
  return static_cast<UnicodeCategory>(*(run - 1) & 3);
}

constexpr uint32_t kDirect = 0x800;

std::array<UnicodeCategory, kDirect> MakeDirect() {
  std::array<UnicodeCategory, kDirect> table = {};
  for (uint32_t c = 0; c < kDirect; ++c) table[c] = Search(c);
  return table;
}

}  // namespace

UnicodeCategory CategoryOf(uint32_t code_point) {
  static const std::array<UnicodeCategory, kDirect> direct = MakeDirect();
  return code_point < kDirect ? direct[code_point] : Search(code_point);
}

}  // namespace fox
