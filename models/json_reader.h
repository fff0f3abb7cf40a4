// Strict JSON for files we did not write: bounded size, depth and number of values, duplicate keys
// refused (if a later key silently wins, two readers can disagree about one file).
#pragma once

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace fox {

struct JsonLimits {
  size_t max_bytes;
  size_t max_depth;   // nested arrays and objects
  size_t max_values;  // of any kind, bounds the memory of the result
};

// Parses all of `text`. `what` (a file name) opens every error (InvalidArgument).
absl::StatusOr<nlohmann::json> ReadJson(const std::string& text, const JsonLimits& limits,
                                        const std::string& what);

}  // namespace fox
