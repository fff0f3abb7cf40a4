// Formats of strings as regular expressions: those of JSON Schema (validation 7.3) that are
// regular, or a regular part of them.
#pragma once

#include <string>

namespace fox {

struct StringFormat {
  const char* name;
  std::string regex;
  int least, most;  // characters; most -1: any number
};

// Null: there is none of this name.
const StringFormat* FindStringFormat(const std::string& name);

// Whether JSON Schema has it and FindStringFormat does not.
bool IsUnknownStringFormat(const std::string& name);

}  // namespace fox
