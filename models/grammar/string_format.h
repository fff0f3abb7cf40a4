// Formats of strings in JSON Schema (validation 7.3) as regular expressions. Where a format is not
// regular, the expression covers a part of it.
#pragma once

#include <string>

namespace fox {

struct StringFormat {
  const char* name;
  std::string regex;
  int least, most;  // length in characters; most -1: no limit
};

// Null: no format of this name is supported.
const StringFormat* FindStringFormat(const std::string& name);

// True for a format of JSON Schema that FindStringFormat does not support.
bool IsUnknownStringFormat(const std::string& name);

}  // namespace fox
