// RefusalLog: see refusal_log.h.
#include "server/calls/refusal_log.h"

#include <optional>
#include <string>

#include "server/process/log.h"

namespace fox {

bool RefusalLog::Add(const CallInfo& call, const absl::Status& status, Seconds now) {
  ++count_;
  std::optional<int64_t> skipped;
  {
    const MutexLock lock(mutex_);
    skipped = limit_.Take(now);
  }
  if (!skipped.has_value()) return false;
  Log(LogLevel::kWarning, "request refused",
      {{"method", call.method},
       {"peer", call.peer},
       {"status", std::string(absl::StatusCodeToString(status.code()))},
       {"reason", std::string(status.message())},
       {"skipped_lines", *skipped}});
  return true;
}

}  // namespace fox
