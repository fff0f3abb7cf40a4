// MemoryLimit: reads /proc and control groups. Formats: proc(5), cgroups(7), and the kernel's
// Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst.
#include "engine/run/memory_limit.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>

namespace fox {
namespace {

// Address space kept for threads that have yet to start: 8 MiB of stack and often 64 MiB of heap
// each.
constexpr int64_t kThreadBytes = 768 << 20;

// The number after `key` in a file of "key number" lines; `key` "": the file's only number.
std::optional<int64_t> ReadNumber(const std::string& path, const std::string& key = "") {
  std::ifstream file(path);
  std::string line;
  while (std::getline(file, line)) {
    if (line.compare(0, key.size(), key) != 0) continue;
    char* end = nullptr;
    const char* begin = line.c_str() + key.size();
    const int64_t value = std::strtoll(begin, &end, 10);
    if (end == begin) return std::nullopt;  // "max"
    return value;
  }
  return std::nullopt;
}

void Lower(MemoryLimit* limit, int64_t bytes, const char* source) {
  if (bytes < limit->bytes) *limit = {std::max<int64_t>(0, bytes), source};
}

// The files of one version of control groups.
struct CgroupFiles {
  const char* source;
  const char* mount;
  const char* max[2];
  const char* usage;
  const char* reclaimable;  // in memory.stat
};

constexpr CgroupFiles kVersion2 = {"the control group's memory.max",
                                   "/sys/fs/cgroup",
                                   {"/memory.max", "/memory.high"},
                                   "/memory.current",
                                   "inactive_file "};
constexpr CgroupFiles kVersion1 = {"the control group's memory.limit_in_bytes",
                                   "/sys/fs/cgroup/memory",
                                   {"/memory.limit_in_bytes", "/memory.limit_in_bytes"},
                                   "/memory.usage_in_bytes",
                                   "total_inactive_file "};

// Lowers the limit to the limit of each group above the process. In a container the mount shows the
// container's own group at its top, though the host knows it by another path.
void LowerByCgroup(const std::string& root, const CgroupFiles& files, std::string group,
                   MemoryLimit* limit) {
  for (;;) {
    const std::string directory = root + files.mount + (group == "/" ? "" : group);
    for (const char* name : files.max) {
      const std::optional<int64_t> most = ReadNumber(directory + name);
      const std::optional<int64_t> used = ReadNumber(directory + files.usage);
      if (!most || !used) continue;
      const int64_t cache = ReadNumber(directory + "/memory.stat", files.reclaimable).value_or(0);
      Lower(limit, *most - *used + std::min(cache, *used), files.source);
    }
    if (group.empty() || group == "/") return;
    group = group.substr(0, group.rfind('/'));
  }
}

}  // namespace

MemoryLimit AvailableMemory(const std::string& root) {
  constexpr int64_t kUnknown = std::numeric_limits<int64_t>::max();
  MemoryLimit limit{kUnknown, ""};
  if (const auto kib = ReadNumber(root + "/proc/meminfo", "MemAvailable:")) {
    Lower(&limit, *kib * 1024, "MemAvailable");
  }
  std::ifstream groups(root + "/proc/self/cgroup");
  std::string line;
  while (std::getline(groups, line)) {  // "4:cpu,memory:/a/b", version 2: "0::/a/b"
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first, second + 1 - first);
    const std::string group = line.substr(second + 1);
    if (controllers == "::") LowerByCgroup(root, kVersion2, group, &limit);
    if (controllers.find("memory") != std::string::npos) {
      LowerByCgroup(root, kVersion1, group, &limit);
    }
  }
  rlimit space{};
  if (getrlimit(RLIMIT_AS, &space) == 0 && space.rlim_cur != RLIM_INFINITY) {
    const int64_t pages = ReadNumber(root + "/proc/self/statm").value_or(0);
    Lower(&limit,
          static_cast<int64_t>(space.rlim_cur) - pages * sysconf(_SC_PAGESIZE) - kThreadBytes,
          "RLIMIT_AS");
  }
  if (limit.bytes == kUnknown) return {int64_t{4} << 30, "a guess"};
  return limit;
}

MemoryLimit WithReserve(MemoryLimit limit, int64_t bytes, const std::string& purpose) {
  if (bytes == 0) return limit;
  return {std::max<int64_t>(limit.bytes - bytes, 0),
          limit.source + ", beside " + std::to_string(bytes >> 20) + " MiB for " + purpose + ","};
}

}  // namespace fox
