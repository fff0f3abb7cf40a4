// StallMonitor: ends calls whose reader has stopped reading. One thread looks at all calls a few
// times a timeout: a write that has been in flight since long ends its call with ABORTED. Writing
// costs a call one increment of a counter, and no clock is read. Read call_reactor.h next.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <list>
#include <thread>

#include "engine/mutex.h"

struct grpc_call;

namespace fox {

class StallMonitor {
 public:
  // One call's writes. Begin and End alternate; the others may be called from any thread.
  class Watch {
   public:
    // `call` must be alive for as long as the watch is.
    Watch(StallMonitor& monitor, grpc_call* call);
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
    StallMonitor& monitor_;
    grpc_call* const call_;
    std::atomic<uint32_t> writes_{0};  // odd: one is in flight
    std::atomic<bool> stalled_{false};
    // Under the monitor's lock: what it saw last, and since when.
    uint32_t seen_ = 0;
    std::chrono::steady_clock::time_point since_;
    std::list<Watch*>::iterator place_;
  };

  // `timeout` in seconds.
  explicit StallMonitor(double timeout);
  ~StallMonitor();

  double timeout() const { return timeout_; }

 private:
  void Loop();
  // Marks the calls that have stalled. The caller owns a reference to each.
  std::list<grpc_call*> TakeStalled() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const double timeout_;
  Mutex mutex_;
  CondVar wake_;
  std::list<Watch*> watches_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace fox
