// What of JSON Schema a grammar can express, checked before it is compiled: a keyword that would be
// ignored is refused, so that an answer that ends is valid.
#pragma once

#include <cstddef>
#include <string>

#include "absl/status/status.h"

namespace fox {

inline constexpr size_t kMaxSchemaDepth = 64;

// Takes time and memory in proportion to the text. InvalidArgument: not JSON, or a schema with
// keywords that are not supported or not in this combination.
absl::Status CheckJsonSchema(const std::string& schema);

}  // namespace fox
