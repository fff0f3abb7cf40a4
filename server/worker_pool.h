// WorkerPool: a few threads and a queue, so that gRPC's threads and the engine's thread never
// tokenize, detokenize or write. The destructor runs what is queued.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace fox {

// All methods may be called from any thread.
class WorkerPool {
 public:
  explicit WorkerPool(int threads);
  ~WorkerPool();

  void Post(std::function<void()> task);
  // Tasks that wait for a thread.
  size_t queued() const;

 private:
  void Loop();

  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> tasks_;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace fox
