// AddSchemaRules: a JSON Schema (2020-12, and draft 7's lists of items) as rules of a grammar in
// EBNF. Every value that the rules write is valid by the schema. A keyword that a grammar cannot
// express is refused; if the schema may be relaxed, it is dropped and listed instead. A `format`
// that cannot be kept is always dropped and listed. Keywords that assert nothing are ignored.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "models/grammar/ebnf_rules.h"

namespace fox {

inline constexpr size_t kMaxSchemaDepth = 64;

// Steps of a WorkMeter around AddSchemaRules of a client's schema, some ten milliseconds.
inline constexpr int64_t kSchemaSteps = 4'000'000;

struct SchemaRules {
  std::string root;                  // the body of a rule that writes one value
  std::vector<std::string> relaxed;  // JSON pointers of the dropped keywords
};

// Adds the rules of `schema`'s values to `rules`. Objects have their properties in the order of the
// schema, and no other properties unless the schema names none or has additionalProperties. Time
// and memory grow with the rules, which WorkMeter bounds. InvalidArgument: not JSON, not a schema,
// a schema without any value, or an unsupported keyword; the message names the place.
absl::StatusOr<SchemaRules> AddSchemaRules(const std::string& schema, bool relax, EbnfRules* rules);

}  // namespace fox
