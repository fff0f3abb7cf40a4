// DeliveryPool: the threads that make events of the engine's outputs. Each call has a lane, a queue
// with one thread, so its outputs stay in order and never meet on two threads. A step's outputs are
// staged and then flushed: one lock and one wake-up a lane and step. Read generation.h next.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "engine/base/mutex.h"
#include "engine/request/request.h"

namespace fox {

// Where outputs end up.
class OutputReceiver {
 public:
  virtual ~OutputReceiver() = default;
  // On the thread of its lane; must not block. `when`: the engine's clock at the step's end.
  virtual void Receive(RequestOutput output, Seconds when) = 0;
};

// A receiver is let go of on the thread of its lane.
struct Delivery {
  std::shared_ptr<OutputReceiver> receiver;
  RequestOutput output;
  Seconds when = 0;
};

class DeliveryPool {
 public:
  explicit DeliveryPool(int threads);
  ~DeliveryPool();  // delivers what is queued

  // The lane of a new call, in turns. Any thread.
  size_t NextLane() { return next_lane_++ % lanes_.size(); }
  // Queues at once. Any thread.
  void Post(size_t lane, Delivery delivery);
  // Queues with the next Flush, which gives all of them its time. The engine's thread alone.
  void Stage(size_t lane, Delivery delivery) {
    lanes_[lane]->staged.push_back(std::move(delivery));
  }
  void Flush(Seconds now);

  // The longest that a lane has been in one Receive by now, in seconds; 0: none is. Any thread.
  double StuckFor() const;

 private:
  using Clock = std::chrono::steady_clock;
  struct Lane {
    std::vector<Delivery> staged;  // used by the engine's thread alone

    Mutex mutex;
    CondVar wake;
    std::vector<Delivery> queue ABSL_GUARDED_BY(mutex);
    bool stopping ABSL_GUARDED_BY(mutex) = false;
    std::atomic<Clock::time_point> receiving_since{Clock::time_point::max()};  // max: not now
    std::thread thread;
  };
  static void Run(Lane& lane);

  std::atomic<size_t> next_lane_{0};
  std::vector<std::unique_ptr<Lane>> lanes_;
};

}  // namespace fox
