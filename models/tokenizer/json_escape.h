// The inside of a JSON string, as LongCrawl64 models see text: Python's json.dumps(text)[1:-1] and
// the way back. The way back works on a growing buffer and never loses text: what is not a valid
// escape stays as it stands. Read token_stream.h next.
#pragma once

#include <string>

namespace fox {

// ASCII only, lower-case hexadecimal digits, surrogate pairs above U+FFFF.
// REQUIRES: `text` is valid UTF-8.
std::string JsonEscape(const std::string& text);

// Moves the bytes that further ones cannot change from the front of `pending` to `out`, with
// escapes undone. A lone surrogate and each ill-formed part of UTF-8 become U+FFFD. At most 11
// bytes stay in `pending`; none when `final`.
void JsonUnescape(std::string* pending, bool final, std::string* out);

}  // namespace fox
