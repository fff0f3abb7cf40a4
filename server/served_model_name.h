// The name under which a model is served, if none is given.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace fox {

// Returns `name`, or if it is empty the name of the model's directory. InvalidArgument: the name is
// empty, longer than 256 bytes, not UTF-8 or has control characters.
absl::StatusOr<std::string> ServedModelName(std::string name, const std::string& model_dir);

}  // namespace fox
