// StallMonitor: ends calls whose reader has stopped reading. A thread looks at all calls a few
// times a timeout: a write that has been in flight for longer ends its call. A write costs its call
// two increments of a counter, and reads no clock.
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
  // Ends the call, for this reason. Called once, without a lock; must not block. The monitor calls
  // a copy, which may outlive the watch.
  using OnStall = std::function<void(const std::string& reason)>;

  // One call's writes. BeginWrite and EndWrite alternate; the other methods may be called from any
  // thread.
  class Watch {
   public:
    // `client`: CallInfo's; used by a monitor that bounds its watches.
    Watch(StallMonitor& monitor, OnStall on_stall, uint64_t client = 0);
    ~Watch();
    Watch(const Watch&) = delete;
    Watch& operator=(const Watch&) = delete;

    // A write, or the call's status, is on its way.
    void BeginWrite() { writes_.fetch_add(1, std::memory_order_relaxed); }
    void EndWrite() { writes_.fetch_add(1, std::memory_order_relaxed); }
    // True if the monitor has ended the call because of its reader.
    bool stalled() const { return stalled_; }

   private:
    friend class StallMonitor;
    // True if it has stalled since the last look. Under the monitor's lock.
    bool HasStalled(Seconds now);

    StallMonitor& monitor_;
    const OnStall on_stall_;
    const uint64_t client_;
    uint64_t number_ = 0;              // ascending in the order of creation
    std::atomic<uint32_t> writes_{0};  // odd: one is in flight
    std::atomic<bool> stalled_{false};
    // Under the monitor's lock: the value of writes_ that it saw last, and since when.
    uint32_t seen_ = 0;
    Seconds since_ = 0;
  };

  // `timeout` in seconds. Beyond `max_watches`, the oldest call of the client with the most calls
  // ends.
  explicit StallMonitor(double timeout, size_t max_watches = std::numeric_limits<size_t>::max())
      : timeout_(timeout), max_watches_(max_watches) {}

  // Looks at all calls, unless it did so less than an eighth of the timeout ago. `now`: seconds of
  // a monotonic clock. One thread.
  void EndStalled(Seconds now);

 private:
  // Removes a watch if there are too many, and returns its callback; null: there are not.
  OnStall TakeExcess() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const double timeout_;
  const size_t max_watches_;
  Seconds next_look_ = 0;  // used by the thread of EndStalled alone
  Mutex mutex_;
  std::unordered_set<Watch*> watches_ ABSL_GUARDED_BY(mutex_);
  uint64_t created_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace fox
