// RefusalLog: see refusal_log.h.
#include "server/calls/refusal_log.h"

#include <string>
#include <utility>

#include "server/process/log.h"

namespace fox {
namespace {

constexpr int kLinesPerSecond = 10;

}  // namespace

bool RefusalLog::Add(const CallInfo& call, const absl::Status& status, Seconds now) {
  ++count_;
  int64_t skipped = 0;
  {
    const MutexLock lock(mutex_);
    if (now >= second_ + 1) {
      second_ = now;
      lines_ = 0;
    }
    if (++lines_ > kLinesPerSecond) {
      ++skipped_;
      return false;
    }
    skipped = std::exchange(skipped_, 0);
  }
  Log(LogLevel::kWarning, "request refused",
      {{"method", call.method},
       {"peer", call.peer},
       {"status", std::string(absl::StatusCodeToString(status.code()))},
       {"reason", std::string(status.message())},
       {"skipped_lines", skipped}});
  return true;
}

}  // namespace fox
