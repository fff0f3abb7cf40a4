// WorkerPool: a few threads and a queue, so that gRPC's threads and the engine's thread never
// tokenize, detokenize or write. The destructor runs what is queued.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <thread>
#include <vector>

#include "engine/mutex.h"

namespace fox {

// All methods may be called from any thread.
class WorkerPool {
 public:
  using Task = std::function<void()>;

  explicit WorkerPool(int threads);
  ~WorkerPool();

  void Post(Task task);
  // Tasks that wait for a thread.
  size_t queued() const;

 private:
  // Waits for the next task; empty: the pool is stopping and none is left.
  Task Next();

  mutable Mutex mutex_;
  CondVar wake_;
  std::deque<Task> tasks_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace fox
