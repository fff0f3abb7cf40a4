// StallMonitor: see stall_monitor.h.
#include "server/calls/stall_monitor.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace fox {

StallMonitor::Watch::Watch(StallMonitor& monitor, OnStall on_stall)
    : monitor_(monitor), on_stall_(std::move(on_stall)) {
  const MutexLock lock(monitor_.mutex_);
  monitor_.watches_.insert(this);
}

StallMonitor::Watch::~Watch() {
  const MutexLock lock(monitor_.mutex_);
  monitor_.watches_.erase(this);
}

bool StallMonitor::Watch::HasStalled(Seconds now) {
  const uint32_t writes = writes_.load(std::memory_order_relaxed);
  if (writes % 2 == 0 || writes != seen_) {
    seen_ = writes;
    since_ = now;
  }
  return now - since_ >= monitor_.timeout_ && !stalled_.exchange(true);
}

void StallMonitor::EndStalled(Seconds now) {
  if (now < next_look_) return;
  next_look_ = now + std::min(timeout_ / 8, 1.0);
  std::vector<OnStall> stalled;
  {
    const MutexLock lock(mutex_);
    for (Watch* watch : watches_) {
      if (watch->HasStalled(now)) stalled.push_back(watch->on_stall_);
    }
  }
  if (stalled.empty()) return;
  const std::string reason =
      absl::StrCat("the reader has stalled: no write was finished for ", timeout_, " s");
  // Without the lock: what ends a call may end its watch.
  for (const OnStall& end : stalled) end(reason);
}

}  // namespace fox
