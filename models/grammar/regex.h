// RegexInEbnf: a regular expression of ECMAScript as the body of a rule in EBNF. Classes mean what
// ECMAScript and Python agree on: `\s` has the spaces of ASCII, `\S` no space of either, `.` no end
// of a line. Assertions other than ^ and $, back references and flags are not supported.
#pragma once

#include <cstdint>
#include <string>

namespace fox {

enum class RegexPlace {
  kAnswer,  // the answer is the text, and matches as a whole
  kString,  // the text between the quotes of a JSON string, which holds a match (pattern)
  kName,    // as kString, of a property's name: each name has only one spelling (json_names.h)
};

// How many characters a text has: at least and at most; a negative `most` means without an end.
struct TextLengths {
  int64_t least = 0, most = -1;
};

struct RegexRule {
  std::string body;
  TextLengths lengths;  // of its texts
};

// Throws std::runtime_error if the expression is malformed or not supported. Its texts keep to the
// lengths `wanted` if at most one part of it, a repeated character, has no fixed length; `lengths`
// tells.
RegexRule RegexInEbnf(const std::string& regex, RegexPlace place, TextLengths wanted = {});

}  // namespace fox
