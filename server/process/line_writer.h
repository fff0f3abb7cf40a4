// LineWriter: lines for a descriptor that may block for ever, such as standard error whose reader
// hangs. A thread of its own writes them; whoever adds one never waits. The descriptor's flags stay
// as they are: other processes share them.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <thread>

#include "engine/mutex.h"

namespace fox {

// All methods may be called from any thread.
class LineWriter {
 public:
  // The line that tells how many were dropped.
  using Report = std::function<std::string(int64_t dropped)>;

  // Holds up to `max_bytes` of lines that are not yet written; more are dropped and counted.
  LineWriter(int descriptor, size_t max_bytes, Report report);
  // Gives up what is not yet written. REQUIRES: no write blocks for ever.
  ~LineWriter();

  // `line` ends with a newline.
  void Add(std::string line);
  // Waits until all lines are written or dropped; false: not within `seconds`.
  bool Flush(double seconds);
  // Lines lost since the start.
  int64_t dropped() const { return total_dropped_; }

 private:
  struct Queued {
    std::string text;
    int64_t reported = 0;  // dropped lines that it tells of; 0: a line
  };
  void Loop();
  // Waits; false: stopping.
  bool Next(Queued* entry);
  bool Write(const std::string& text);

  const int descriptor_;
  const size_t max_bytes_;
  const Report report_;
  std::atomic<int64_t> total_dropped_{0};
  bool torn_ = false;  // a line was written in part; the writer's thread alone

  Mutex mutex_;
  CondVar changed_;
  std::deque<Queued> queue_ ABSL_GUARDED_BY(mutex_);
  size_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;     // of the queue and of what is being written
  int64_t dropped_ ABSL_GUARDED_BY(mutex_) = 0;  // not yet told
  bool failing_ ABSL_GUARDED_BY(mutex_) = false;
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace fox
