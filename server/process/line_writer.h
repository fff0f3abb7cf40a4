// LineWriter: writes lines to a descriptor that may block for ever, such as standard error with a
// reader that hangs. A thread of its own writes; adding a line never waits. The descriptor's flags
// are not changed, because other processes share them.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "engine/base/mutex.h"

namespace fox {

// All methods may be called from any thread.
class LineWriter {
 public:
  // Makes the line that reports `dropped` lines.
  using Report = std::function<std::string(int64_t dropped)>;

  // Holds up to `max_bytes` of unwritten lines; further lines are dropped and counted.
  LineWriter(int descriptor, size_t max_bytes, Report report);
  // Drops queued lines. REQUIRES: no write blocks for ever.
  ~LineWriter();

  // `line` ends with a newline.
  void Add(std::string line);
  // Waits at most `seconds` until all lines are written or dropped. True if they are.
  bool Flush(double seconds);
  // Lines dropped since the start.
  int64_t dropped() const { return dropped_; }

 private:
  void Loop();
  bool Write(const std::string& text);

  const int descriptor_;
  const size_t max_bytes_;
  const Report report_;
  std::atomic<size_t> bytes_{0};  // of queued lines and the lines that are being written
  std::atomic<int64_t> dropped_{0};
  bool torn_ = false;  // a line was written in part; used by the writer's thread alone

  Mutex mutex_;
  CondVar changed_;
  std::vector<std::string> queue_ ABSL_GUARDED_BY(mutex_);
  bool idle_ ABSL_GUARDED_BY(mutex_) = true;  // no line was added since all were written
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace fox
