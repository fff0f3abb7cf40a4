// MemoryLimit: how much memory the process may still take, of the machine's and of every limit that
// stands around it.
#pragma once

#include <cstdint>
#include <string>

namespace fox {

struct MemoryLimit {
  int64_t bytes = 0;
  std::string source;  // what sets it, for people
};

// The least of MemAvailable, what the control groups around the process leave (v1 and v2; page
// cache that is easily given up counts as free) and what RLIMIT_AS leaves beside what threads will
// take (0.5 GiB); 4 GiB where none can be read. `root` is put in front of /proc and /sys, for
// tests.
MemoryLimit AvailableMemory(const std::string& root = "");

// What is left beside `bytes` for `what`: "calls and the process".
MemoryLimit Beside(MemoryLimit limit, int64_t bytes, const std::string& what);

}  // namespace fox
