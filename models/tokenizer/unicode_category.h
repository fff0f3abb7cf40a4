// Unicode categories for GPT-2's pre-tokenizer: a letter, a number, white space, or none of these.
// The table (unicode_category.inc) is generated; see make_unicode_category.py. Read pretokenizer.h
// next.
#pragma once

#include <cstdint>

namespace fox {

enum class UnicodeCategory : uint8_t {
  kSpace = 0,   // \s   White_Space
  kLetter = 1,  // \p{L}
  kNumber = 2,  // \p{N}
  kOther = 3,
};

// REQUIRES: code_point <= 0x10FFFF.
UnicodeCategory CategoryOf(uint32_t code_point);

}  // namespace fox
