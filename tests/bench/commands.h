// The commands of fox-bench that measure no model in this process, and so take flags of their own.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"

namespace fox {

// Writes a checkpoint with random weights.
absl::Status MakeModel(const std::vector<std::string>& arguments);
// Sends requests to a running server and measures what a client sees.
absl::Status BenchServe(const std::vector<std::string>& arguments);
// Compares loads with the prefix cache and without it, through the engine alone.
absl::Status BenchCache(const std::vector<std::string>& arguments);
// Compares the same requests alone and beside one another, bit for bit; Internal: some differ.
absl::Status BenchInvariance(const std::vector<std::string>& arguments);

}  // namespace fox
