// Merging two JSON schemas into one, and a test whether they exclude each other. All schemas here
// are plain (see schema_writer.h).
#pragma once

#include <stdexcept>
#include <string>

#include "models/checkpoint/json_reader.h"

namespace fox {

// Thrown for a schema that no value satisfies.
struct NoValue : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The value of the keyword; null if the schema lacks it.
const ExactJson& At(const ExactJson& schema, const std::string& keyword);

// True if the value is of one of the types that the schema names, or it names none. 1.0 is an
// integer.
bool IsOfType(const ExactJson& value, const ExactJson& schema);

// The schema whose values satisfy both `a` and `b`. Throws NoValue if there are none, and
// std::runtime_error with the keyword if a grammar cannot express it.
ExactJson Merged(const ExactJson& a, const ExactJson& b);

// True if `enum` and `type` alone show that no value satisfies both. False: not known.
bool AreDisjoint(const ExactJson& a, const ExactJson& b);

}  // namespace fox
