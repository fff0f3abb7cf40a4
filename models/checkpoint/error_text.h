// Bytes from a file in an error message: one printable line of bounded length, so that a hostile
// tensor name can neither forge log lines nor flood the log.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace fox {

// `text` with everything but printable ASCII replaced by '?', cut to about 120 characters.
std::string Printable(const std::string& text);

// Printable, between double quotes.
std::string Quoted(const std::string& text);

// The InvalidArgument error "name: problem" about a file. REQUIRES: both are printable.
absl::Status InvalidFile(const std::string& name, const std::string& problem);

inline constexpr char kInsteadOfQuantized[] =
    "take the repository of the model in bf16, or a GGUF file, which foxserve serve reads";

}  // namespace fox
