// Expressions of JSON values: EBNF of characters and numbers, and regular expressions of the
// numbers in a range.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace fox {

// A character of a string or an escape, as EBNF. Half a surrogate pair is not a character (RFC
// 7493, 2.1).
std::string JsonCharacter();

// Numbers as EBNF. They are bounded, so that they end and every client can read them: at most 16
// digits before and behind the point, and an exponent up to 289, with which all fit into a double.
std::string JsonInteger();
std::string JsonNumber();

// The regular expression of the integers in [first, last], without leading zeros. A missing bound
// means 16 digits, which every client can read, or as many digits as the other bound has.
std::string IntegerPattern(std::optional<int64_t> first, std::optional<int64_t> last);

struct NumberBound {
  double value;
  bool excluded;  // the number itself is beyond the bound
};
// The regular expression of the decimals between two bounds, without exponents, with as many digits
// as a double has exactly; "": there is none. REQUIRES: least <= most. Instead of a bound of more
// digits it takes the next number inside that has no more; std::runtime_error if there is none.
std::string NumberPattern(std::optional<NumberBound> least, std::optional<NumberBound> most);

// The EBNF of such a regular expression. RegexInEbnf would count each of its nested groups once for
// each group around it.
std::string NumberInEbnf(const std::string& pattern);

}  // namespace fox
