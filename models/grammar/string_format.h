// Formats of strings in JSON Schema (validation 7.3) as regular expressions. Where a format is not
// regular, the expression covers a part of it.
#pragma once

#include <string>

namespace fox {

struct StringFormat {
  const char* name;
  std::string regex = {};    // "": the format is not supported
  int least = 0, most = -1;  // length in characters; most -1: no limit
};

// Null: JSON Schema has no format of this name.
const StringFormat* FindStringFormat(const std::string& name);

}  // namespace fox
