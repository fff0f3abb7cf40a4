// MemoryLimit: how much memory the process may still take, by the machine's free memory and by
// every limit on the process.
#pragma once

#include <cstdint>
#include <string>

namespace fox {

struct MemoryLimit {
  int64_t bytes = 0;
  std::string source;  // names the limit, for messages
};

// The smallest of: MemAvailable; the rest of each control group around the process (v1 and v2,
// where inactive page cache counts as free); the rest of RLIMIT_AS less 0.75 GiB for threads. 4 GiB
// if none can be read. `root` is put in front of /proc and /sys, for tests.
MemoryLimit AvailableMemory(const std::string& root = "");

// The limit less `bytes` for `purpose`, for example "calls and the process".
MemoryLimit WithReserve(MemoryLimit limit, int64_t bytes, const std::string& purpose);

}  // namespace fox
