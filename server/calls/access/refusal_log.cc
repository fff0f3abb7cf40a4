// RefusalLog: see refusal_log.h.
#include "server/calls/access/refusal_log.h"

#include <numeric>
#include <optional>
#include <string>
#include <vector>

namespace fox {

int64_t RefusalLog::count() const {
  return std::accumulate(counts_.begin(), counts_.end(), int64_t{0});
}

bool RefusalLog::Add(const CallInfo& call, RefusalReason reason, const absl::Status& status,
                     Seconds now) {
  ++counts_[static_cast<size_t>(reason)];
  std::optional<int64_t> skipped;
  {
    const MutexLock lock(mutex_);
    skipped = limit_.Take(now);
  }
  if (!skipped.has_value()) return false;
  std::vector<LogField> fields = {{"method", call.method},
                                  {"peer", call.peer},
                                  {"status", std::string(absl::StatusCodeToString(status.code()))},
                                  {"reason", std::string(status.message())},
                                  {"skipped_lines", *skipped}};
  call.trace.AddTo(&fields);
  Log(LogLevel::kWarning, "request refused", fields);
  return true;
}

}  // namespace fox
