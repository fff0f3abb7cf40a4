// LineWriter: lines for a descriptor that may block for ever, such as standard error whose reader
// hangs. A thread of its own writes them; adding one never waits. The descriptor's flags stay
// as they are: other processes share them.
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
  // The line that tells how many were dropped.
  using Report = std::function<std::string(int64_t dropped)>;

  // Holds up to `max_bytes` of lines that are not yet written; more are dropped and counted.
  LineWriter(int descriptor, size_t max_bytes, Report report);
  // Gives up what is queued. REQUIRES: no write blocks for ever.
  ~LineWriter();

  // `line` ends with a newline.
  void Add(std::string line);
  // Waits until all lines are written or dropped; false: not within `seconds`.
  bool Flush(double seconds);
  // Lines lost since the start.
  int64_t dropped() const { return dropped_; }

 private:
  void Loop();
  bool Write(const std::string& text);

  const int descriptor_;
  const size_t max_bytes_;
  const Report report_;
  std::atomic<size_t> bytes_{0};  // of the queue and of what is being written
  std::atomic<int64_t> dropped_{0};
  bool torn_ = false;  // a line was written in part; the writer's thread alone

  Mutex mutex_;
  CondVar changed_;
  std::vector<std::string> queue_ ABSL_GUARDED_BY(mutex_);
  bool idle_ ABSL_GUARDED_BY(mutex_) = true;  // nothing was added since all was written
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace fox
