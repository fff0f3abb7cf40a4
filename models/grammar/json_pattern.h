// Regular expressions of JSON's texts: of a string that has a pattern, and of integers in a range.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace fox {

// A character of a string, or its escape, as EBNF. Half a surrogate pair is none (RFC 7493, 2.1).
std::string JsonCharacter();

// Numbers as EBNF, that end and that every client can read: at most 16 digits before and behind the
// point, and an exponent up to 289, with which a double holds them all.
std::string JsonInteger();
std::string JsonNumber();

// The pattern of the text between the quotes, where characters may be escaped. Throws
// std::runtime_error: not supported.
std::string PatternInJson(const std::string& regex);

// Of the integers in [first, last], without leading zeros; none: no bound, but 16 digits, which
// every client can read, or those of the other bound.
std::string IntegerPattern(std::optional<int64_t> first, std::optional<int64_t> last);

}  // namespace fox
