// Regular expressions of JSON's texts: of a string that has a pattern, and of integers in a range.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace fox {

// The pattern of the text between the quotes. What JSON escapes comes escaped or, out of what a
// class leaves open, not at all. Throws std::runtime_error: not supported.
std::string PatternInJson(const std::string& regex);

// Of the integers in [first, last], without leading zeros; none: no bound.
std::string IntegerPattern(std::optional<int64_t> first, std::optional<int64_t> last);

}  // namespace fox
