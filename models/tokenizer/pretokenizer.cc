// The alternatives of GPT-2's expression in their order. See pretokenizer.h.
#include "models/tokenizer/pretokenizer.h"

#include <cstdint>

#include "models/tokenizer/unicode_category.h"
#include "models/tokenizer/utf8.h"

namespace fox {
namespace {

struct Character {
  UnicodeCategory category = UnicodeCategory::kOther;
  size_t length = 0;
};

Character CharacterAt(const std::string& text, size_t at, size_t end) {
  const Utf8Unit unit = NextUtf8(text.data() + at, end - at);
  return {CategoryOf(unit.code_point), unit.length};
}

// Length of 's 't 're 've 'm 'll 'd at `at`, which holds an apostrophe; 0: none of them.
size_t ContractionLength(const std::string& text, size_t at, size_t end) {
  const char first = at + 1 < end ? text[at + 1] : '\0';
  const char second = at + 2 < end ? text[at + 2] : '\0';
  if (first == 's' || first == 't' || first == 'm' || first == 'd') return 2;
  if ((first == 'r' || first == 'v') && second == 'e') return 3;
  if (first == 'l' && second == 'l') return 3;
  return 0;
}

// End of the run of characters of one category that starts at `at`; `last` is where its last
// character starts.
size_t RunEnd(const std::string& text, size_t at, size_t end, UnicodeCategory category,
              size_t* last) {
  while (at < end) {
    const Character character = CharacterAt(text, at, end);
    if (character.category != category) break;
    *last = at;
    at += character.length;
  }
  return at;
}

}  // namespace

size_t NextPretoken(const std::string& text, size_t begin, size_t end) {
  if (text[begin] == '\'') {
    const size_t length = ContractionLength(text, begin, end);
    if (length > 0) return begin + length;
  }
  // One plain space belongs to the letters, numbers or signs after it.
  const size_t body = text[begin] == ' ' ? begin + 1 : begin;
  size_t last = begin;
  if (body < end) {
    const UnicodeCategory category = CharacterAt(text, body, end).category;
    if (category != UnicodeCategory::kSpace) return RunEnd(text, body, end, category, &last);
  }
  // The last character of white space belongs to the next piece, unless it is alone or ends the
  // text.
  const size_t run_end = RunEnd(text, begin, end, UnicodeCategory::kSpace, &last);
  return run_end == end || last == begin ? run_end : last;
}

}  // namespace fox
