// StallMonitor: see stall_monitor.h.
#include "server/calls/stall_monitor.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "engine/steady_clock.h"
#include "grpc/grpc.h"

namespace fox {
namespace {

using Clock = std::chrono::steady_clock;

}  // namespace

StallMonitor::Watch::Watch(StallMonitor& monitor, grpc_call* call)
    : monitor_(monitor), call_(call) {
  const MutexLock lock(monitor_.mutex_);
  place_ = monitor_.watches_.insert(monitor_.watches_.end(), this);
  if (monitor_.watches_.size() == 1) monitor_.wake_.NotifyOne();
}

StallMonitor::Watch::~Watch() {
  const MutexLock lock(monitor_.mutex_);
  monitor_.watches_.erase(place_);
}

StallMonitor::StallMonitor(double timeout) : timeout_(timeout), thread_([this] { Loop(); }) {}

StallMonitor::~StallMonitor() {
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
  }
  wake_.NotifyOne();
  thread_.join();
}

void StallMonitor::Loop() {
  const Clock::duration tick = SteadyDuration(std::clamp(timeout_ / 8, 0.01, 1.0));
  const std::string reason =
      absl::StrCat("the reader has stalled: no write was finished for ", timeout_, " s");
  for (;;) {
    std::list<grpc_call*> stalled;
    {
      const MutexLock lock(mutex_);
      while (!stopping_ && watches_.empty()) wake_.Wait(mutex_);
      const Clock::time_point next = Clock::now() + tick;
      while (!stopping_ && wake_.WaitUntil(mutex_, next)) {
      }
      if (stopping_) return;
      stalled = TakeStalled();
    }
    // Without the lock: the library may run what ends a call.
    for (grpc_call* call : stalled) {
      grpc_call_cancel_with_status(call, GRPC_STATUS_ABORTED, reason.c_str(), nullptr);
      grpc_call_unref(call);
    }
  }
}

std::list<grpc_call*> StallMonitor::TakeStalled() {
  std::list<grpc_call*> stalled;
  const Clock::time_point now = Clock::now();
  for (Watch* watch : watches_) {
    const uint32_t writes = watch->writes_.load(std::memory_order_relaxed);
    if (writes % 2 == 0 || writes != watch->seen_) {
      watch->seen_ = writes;
      watch->since_ = now;
    } else if (!watch->stalled_ && now - watch->since_ >= SteadyDuration(timeout_)) {
      watch->stalled_ = true;
      grpc_call_ref(watch->call_);
      stalled.push_back(watch->call_);
    }
  }
  return stalled;
}

}  // namespace fox
