// RegexInEbnf: a regular expression of ECMAScript as the body of a rule in EBNF. Classes mean what
// ECMAScript and Python agree on: `\s` has the spaces of ASCII, `\S` no space of either, `.` no end
// of a line. Assertions other than ^ and $, back references and flags are not supported.
#pragma once

#include <string>

namespace fox {

enum class RegexPlace {
  kAnswer,  // the answer is the text, and matches as a whole
  kString,  // the text between the quotes of a JSON string, which holds a match (pattern)
  kName,    // as kString, of a property's name: each name has only one spelling (json_names.h)
};

// Throws std::runtime_error if the expression is malformed or not supported.
std::string RegexInEbnf(const std::string& regex, RegexPlace place);

}  // namespace fox
