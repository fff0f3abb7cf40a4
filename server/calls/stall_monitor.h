// StallMonitor: ends calls whose reader has stopped reading. A thread looks at all calls a few
// times a timeout: a write that has been in flight for longer ends its call. Writing costs a call
// one increment of a counter, and no clock is read. Read call_reactor.h next.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <unordered_set>

#include "engine/base/mutex.h"
#include "engine/request/request.h"

namespace fox {

class StallMonitor {
 public:
  // Ends the call, for this reason. Called once, without a lock and without waiting for anything,
  // by a copy that may outlive the watch.
  using OnStall = std::function<void(const std::string& reason)>;

  // One call's writes. Begin and End alternate; the others may be called from any thread.
  class Watch {
   public:
    // `client`: CallInfo's; a monitor that bounds its watches asks for it.
    Watch(StallMonitor& monitor, OnStall on_stall, uint64_t client = 0);
    ~Watch();
    Watch(const Watch&) = delete;
    Watch& operator=(const Watch&) = delete;

    // A write, or the call's status, is on its way.
    void Begin() { writes_.fetch_add(1, std::memory_order_relaxed); }
    void End() { writes_.fetch_add(1, std::memory_order_relaxed); }
    // Whether the call was ended for its reader.
    bool stalled() const { return stalled_; }

   private:
    friend class StallMonitor;
    // Whether it has stalled since the last look. Under the monitor's lock.
    bool HasStalled(Seconds now);

    StallMonitor& monitor_;
    const OnStall on_stall_;
    const uint64_t client_;
    uint64_t number_ = 0;              // in the order of their making
    std::atomic<uint32_t> writes_{0};  // odd: one is in flight
    std::atomic<bool> stalled_{false};
    // Under the monitor's lock: what it saw last, and since when.
    uint32_t seen_ = 0;
    Seconds since_ = 0;
  };

  // `timeout` in seconds. One more than `most` watches at a time ends the oldest call of the client
  // that has most calls.
  explicit StallMonitor(double timeout, size_t most = std::numeric_limits<size_t>::max())
      : timeout_(timeout), most_(most) {}

  // Looks at all calls, unless it did so less than an eighth of the timeout ago. `now`: in seconds
  // of a clock that goes on. One thread.
  void EndStalled(Seconds now);

 private:
  // Ends the watch of a call if there are too many; null: there are not.
  OnStall TakeExcess() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const double timeout_;
  const size_t most_;
  Seconds next_look_ = 0;  // used by the thread of EndStalled alone
  Mutex mutex_;
  std::unordered_set<Watch*> watches_ ABSL_GUARDED_BY(mutex_);
  uint64_t made_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace fox
