// RefusalLog: see refusal_log.h.
#include "server/calls/refusal_log.h"

#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "server/process/log.h"

namespace fox {
namespace {

constexpr int kLinesPerSecond = 10;

}  // namespace

int64_t RefusalLog::count() const {
  return std::accumulate(counts_.begin(), counts_.end(), int64_t{0});
}

bool RefusalLog::Add(const CallInfo& call, RefusalReason reason, const absl::Status& status,
                     Seconds now) {
  ++counts_[static_cast<size_t>(reason)];
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
  std::vector<LogField> fields = {{"method", call.method},
                                  {"peer", call.peer},
                                  {"status", std::string(absl::StatusCodeToString(status.code()))},
                                  {"reason", std::string(status.message())},
                                  {"skipped_lines", skipped}};
  call.trace.AddTo(&fields);
  Log(LogLevel::kWarning, "request refused", fields);
  return true;
}

}  // namespace fox
