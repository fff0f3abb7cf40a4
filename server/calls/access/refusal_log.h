// RefusalLog: counts calls that were refused before they cost anything, and logs some of them: a
// flood of refusals must not become a flood of lines.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "engine/base/mutex.h"
#include "server/calls/access/call_info.h"
#include "server/process/log.h"

namespace fox {

enum class RefusalReason : uint8_t { kDraining, kDeadline, kQueue, kBudget, kCredentials };
inline constexpr size_t kRefusalReasons = 5;

// All methods may be called from any thread.
class RefusalLog {
 public:
  // At most ten lines a second are logged; the next line says how many were not. Returns true
  // if this refusal was. `now`: on the engine's clock.
  bool Add(const CallInfo& call, RefusalReason reason, const absl::Status& status, Seconds now);
  int64_t count(RefusalReason reason) const { return counts_[static_cast<size_t>(reason)]; }
  // For all reasons.
  int64_t count() const;

 private:
  std::array<std::atomic<int64_t>, kRefusalReasons> counts_{};
  Mutex mutex_;
  LogLimit limit_ ABSL_GUARDED_BY(mutex_){10, 1.0};
};

}  // namespace fox
