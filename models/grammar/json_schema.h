// A JSON Schema (2020-12, and draft 7's lists of items) as rules of a grammar in EBNF: what the
// rules write is of the schema. A keyword that a grammar cannot say is refused, or dropped and
// named where the schema may be relaxed, as a format is that cannot be kept. Keywords that assert
// nothing are not looked at.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "models/grammar/ebnf_rules.h"

namespace fox {

inline constexpr size_t kMaxSchemaDepth = 64;

struct SchemaRules {
  std::string root;                  // what writes a value, for a rule's body
  std::vector<std::string> relaxed;  // JSON pointers of the keywords that were dropped
};

// Adds the rules of `schema`'s values to `rules`: properties in the order of the schema; none that
// it does not name, unless it names none or says additionalProperties. Takes time and memory in
// proportion to the rules, of which there is a bound. InvalidArgument: not JSON, not a schema,
// without any value, or with keywords that are not supported; the message has the place.
absl::StatusOr<SchemaRules> AddSchemaRules(const std::string& schema, bool relax, EbnfRules* rules);

}  // namespace fox
