// Process metrics: from proc(5) and mallinfo(3).
#include <malloc.h>
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "server/metrics/metrics_collector.h"

namespace fox {
namespace {

// Fields of /proc/self/stat, counted from the state, which is the third.
constexpr size_t kStartTime = 19, kResidentPages = 21;

double Number(const std::vector<std::string>& fields, size_t i) {
  double value = 0;
  return i < fields.size() && absl::SimpleAtod(fields[i], &value) ? value : 0;
}

}  // namespace

void AddProcessMetrics(MetricFamilies* out) {
  out->Counter("process_cpu_seconds_total", "User and system time of the process.",
               static_cast<double>(std::clock()) / CLOCKS_PER_SEC);
  std::ifstream file("/proc/self/stat");
  const std::string line{std::istreambuf_iterator<char>(file), {}};
  const size_t name_end = line.rfind(") ");  // the name may hold anything
  if (name_end != std::string::npos) {
    const std::vector<std::string> fields = absl::StrSplit(line.substr(name_end + 2), ' ');
    const double now =
        std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
    const double started = Number(fields, kStartTime) / static_cast<double>(sysconf(_SC_CLK_TCK));
    double uptime = 0;  // of the machine
    std::ifstream("/proc/uptime") >> uptime;
    out->Gauge("process_start_time_seconds", "When the process started, in Unix time.",
               now - uptime + started);
    out->Gauge("process_resident_memory_bytes", "Memory of the process that is in RAM.",
               Number(fields, kResidentPages) * static_cast<double>(sysconf(_SC_PAGESIZE)));
  }
  const struct mallinfo2 heap = mallinfo2();
  out->Gauge("process_heap_bytes", "Memory of the heap that is in use.",
             heap.uordblks + heap.hblkhd);
  std::error_code error;
  const std::filesystem::directory_iterator open("/proc/self/fd", error);
  if (!error) {
    out->Gauge("process_open_fds", "Open file descriptors.",
               std::distance(begin(open), end(open)) - 1);
  }
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    out->Gauge("process_max_fds", "File descriptors that the process may open.", limit.rlim_cur);
  }
}

}  // namespace fox
