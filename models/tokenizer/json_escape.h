// The inside of a JSON string, as LongCrawl64 models see text: Python's json.dumps(text)[1:-1] and
// its inverse. The inverse works on a growing buffer and never loses text: an invalid escape stays
// as it is. Read token_stream.h next.
#pragma once

#include <string>

namespace fox {

// ASCII only, lower-case hexadecimal digits, surrogate pairs above U+FFFF.
// REQUIRES: `text` is valid UTF-8.
std::string JsonEscape(const std::string& text);

// Moves bytes from the front of `pending` to `out` and undoes escapes, as far as bytes that may
// follow cannot change the result. A lone surrogate and each ill-formed part of UTF-8 become
// U+FFFD. At most 11 bytes stay in `pending`; none if `final`.
void JsonUnescape(std::string* pending, bool final, std::string* out);

}  // namespace fox
