// JSON as it was written: parts of a text, and its spacing. Numbers keep their digits, which a
// document of doubles would lose from 2^53 or 2^63 on, and names keep their order.
#pragma once

#include <initializer_list>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace fox {

// REQUIRES of all: ReadJson (json_reader.h) accepts `json`. Results are views of it.

// The value at a path of names, each of an object. Empty: there is none.
absl::string_view JsonAt(absl::string_view json, std::initializer_list<absl::string_view> path);

// The values of an array; none where it is no array.
std::vector<absl::string_view> JsonElements(absl::string_view json);

enum class JsonSpacing {
  kNone,
  kPython,  // as json.dumps: a space behind each comma and colon, as models know it from templates
};
// The document rewritten on one line. Strings have only the escapes that JSON requires.
std::string Respaced(absl::string_view json, JsonSpacing spacing);

}  // namespace fox
