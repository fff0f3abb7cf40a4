// What two JSON schemas say together, and whether they exclude each other. Both are plain: objects
// of keywords that assert something, `type` and `enum` lists (see json_schema.cc).
#pragma once

#include <stdexcept>
#include <string>

#include "models/checkpoint/json_reader.h"

namespace fox {

// No value is of the schema.
struct NoValue : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The keyword's value; null: it has none.
const ExactJson& At(const ExactJson& schema, const std::string& keyword);

// A number's value; of another value NaN.
double NumberOf(const ExactJson& value);

// JSON Schema's: an integer may have a fraction of zeros.
bool IsOfType(const ExactJson& value, const std::string& type);

// A schema of the values that are of both. Throws NoValue, or std::runtime_error where it is none
// that a grammar can say, with the keyword.
ExactJson Merged(const ExactJson& a, const ExactJson& b);

// Whether no value is of both, by what enum and type say.
bool AreDisjoint(const ExactJson& a, const ExactJson& b);

}  // namespace fox
