// TraceFile: a file of Chrome trace events, for chrome://tracing and ui.perfetto.dev. The file is
// complete JSON after every write, so it loads however the process ends.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace fox {

// One thread at a time.
class TraceFile {
 public:
  static constexpr int64_t kMaxBytes = int64_t{256} << 20;
  // Called when the trace ends before the engine does, with the reason.
  using OnEnd = std::function<void(const char* reason)>;

  // Creates or empties the file. InvalidArgument: it cannot be written.
  static absl::StatusOr<std::unique_ptr<TraceFile>> Create(
      const std::string& path, OnEnd on_end = [](const char*) {}, int64_t max_bytes = kMaxBytes);
  ~TraceFile();  // Flush()
  TraceFile(const TraceFile&) = delete;
  TraceFile& operator=(const TraceFile&) = delete;

  // Adds one event, a JSON object, with the next Flush. The event that would pass `max_bytes` and
  // all later ones are left out; the last event says so.
  void Add(const std::string& event);
  void Flush();

 private:
  TraceFile(int fd, int64_t max_bytes) : fd_(fd), max_bytes_(max_bytes) {}
  void End(const char* reason);

  const int fd_;
  const int64_t max_bytes_;
  OnEnd on_end_ = [](const char*) {};
  int64_t end_ = 0;      // offset after the last event; the closing brackets follow
  std::string pending_;  // events to write, each after its comma
  bool ended_ = false;   // Add does nothing
};

}  // namespace fox
