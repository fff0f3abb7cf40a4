// The pattern of a JSON string, as a pattern of the JSON text between the quotes.
#pragma once

#include <string>

namespace fox {

// What JSON escapes comes escaped or, out of what a class leaves open, not at all. Throws
// std::runtime_error: not supported.
std::string PatternInJson(const std::string& regex);

}  // namespace fox
