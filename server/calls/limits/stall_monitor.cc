// StallMonitor: watches, and the look at them. See stall_monitor.h.
#include "server/calls/limits/stall_monitor.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace fox {

StallMonitor::Watch::Watch(StallMonitor& monitor, OnStall on_stall, uint64_t client)
    : monitor_(monitor), on_stall_(std::move(on_stall)), client_(client) {
  OnStall end;
  {
    const MutexLock lock(monitor_.mutex_);
    number_ = ++monitor_.created_;
    monitor_.watches_.insert(this);
    end = monitor_.TakeExcess();
  }
  // Without the lock: the callback may destroy the watch.
  if (end) end("the reader has stalled: too many calls wait to be read");
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
  if (now - since_ < monitor_.timeout_) return false;
  stalled_ = true;
  return true;
}

StallMonitor::OnStall StallMonitor::TakeExcess() {
  if (watches_.size() <= max_watches_) return nullptr;
  std::map<uint64_t, size_t> calls;  // of each client
  for (const Watch* watch : watches_) ++calls[watch->client_];
  Watch* const end =
      *std::max_element(watches_.begin(), watches_.end(), [&](const Watch* a, const Watch* b) {
        return std::pair(calls[a->client_], b->number_) < std::pair(calls[b->client_], a->number_);
      });
  end->stalled_ = true;
  watches_.erase(end);
  return end->on_stall_;
}

void StallMonitor::EndStalled(Seconds now) {
  if (now < next_look_) return;
  next_look_ = now + std::min(timeout_ / 8, 1.0);
  std::vector<OnStall> stalled;
  {
    const MutexLock lock(mutex_);
    std::erase_if(watches_, [&](Watch* watch) {
      const bool has_stalled = watch->HasStalled(now);
      if (has_stalled) stalled.push_back(watch->on_stall_);
      return has_stalled;
    });
  }
  if (stalled.empty()) return;
  const std::string reason =
      absl::StrCat("the reader has stalled: no write was finished for ", timeout_, " s");
  // Without the lock: the callback may destroy the watch.
  for (const OnStall& end : stalled) end(reason);
}

}  // namespace fox
