// DeliveryPool: the threads that hand the engine's outputs to their listeners, so that the engine's
// thread never does a listener's work. Each submission has a lane, a queue with one thread: its
// outputs stay in order and never meet on two threads. The outputs of a step are staged and then
// flushed: one lock and one wake-up a lane and step. Read engine_thread.h next.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "engine/base/mutex.h"
#include "engine/request/request.h"

namespace fox {

// Receives the engine's answers to one submission.
class SubmissionListener {
 public:
  virtual ~SubmissionListener() = default;
  // Called once, on the engine's thread, before any output; must not block. Ok, or the error that
  // refused all requests of the submission.
  virtual void OnSubmitted(const absl::Status& status) = 0;
  // Called for each output of the submission's requests; the last one of a request has `finish`.
  // Runs on the thread of the submission's lane; without a pool, on the engine's. Must not block.
  // `when`: the engine's clock at the end of the step.
  virtual void OnOutput(RequestOutput output, Seconds when) = 0;
};

// The pool lets go of the listener on the thread of its lane.
struct Delivery {
  std::shared_ptr<SubmissionListener> listener;
  RequestOutput output;
  Seconds when = 0;
};

class DeliveryPool {
 public:
  // As many lanes as threads, at least one. `has_threads` false: the owner calls RunLane instead,
  // as a simulation does.
  explicit DeliveryPool(int threads, bool has_threads = true);
  ~DeliveryPool();  // delivers all queued outputs

  // The lane of a new submission, in turns. Any thread.
  size_t NextLane() { return next_lane_++ % lanes_.size(); }
  size_t lanes() const { return lanes_.size(); }
  // Queues at once. Any thread.
  void Post(size_t lane, Delivery delivery);
  // Queues with the next Flush, which gives all of them its time. The engine's thread alone.
  void Stage(size_t lane, Delivery delivery) {
    lanes_[lane]->staged.push_back(std::move(delivery));
  }
  void Flush(Seconds now);

  // Without threads: delivers the lane's queued outputs. False: its queue was empty.
  bool RunLane(size_t lane);

  // The longest time that a lane has been in one OnOutput by now, in seconds; 0: none is. Any
  // thread.
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
  static void DeliverAll(Lane& lane, std::vector<Delivery>* deliveries);

  const bool has_threads_;
  std::atomic<size_t> next_lane_{0};
  std::vector<std::unique_ptr<Lane>> lanes_;
};

}  // namespace fox
