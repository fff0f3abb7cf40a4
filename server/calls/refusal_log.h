// RefusalLog: counts calls that were refused before they cost anything, and logs some of them: a
// flood of refusals must not become a flood of lines.
#pragma once

#include <atomic>
#include <cstdint>

#include "absl/status/status.h"
#include "engine/mutex.h"
#include "server/calls/call_info.h"
#include "server/process/log_limit.h"

namespace fox {

// All methods may be called from any thread.
class RefusalLog {
 public:
  // At most ten lines a second are logged; the next line says how many were not. Returns whether
  // this one was. `now`: on the engine's clock.
  bool Add(const CallInfo& call, const absl::Status& status, Seconds now);
  int64_t count() const { return count_; }

 private:
  std::atomic<int64_t> count_{0};
  Mutex mutex_;
  LogLimit limit_ ABSL_GUARDED_BY(mutex_){10, 1.0};
};

}  // namespace fox
