// WorkerPool: see worker_pool.h.
#include "server/worker_pool.h"

#include <utility>

namespace fox {

WorkerPool::WorkerPool(int threads) {
  for (int i = 0; i < threads; ++i) {
    threads_.emplace_back([this] {
      while (const Task task = Next()) task();  // what a task holds is freed without the lock
    });
  }
}

WorkerPool::~WorkerPool() {
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
  }
  wake_.NotifyAll();
  for (std::thread& thread : threads_) thread.join();
}

void WorkerPool::Post(Task task) {
  {
    const MutexLock lock(mutex_);
    tasks_.push_back(std::move(task));
  }
  wake_.NotifyOne();
}

size_t WorkerPool::queued() const {
  const MutexLock lock(mutex_);
  return tasks_.size();
}

WorkerPool::Task WorkerPool::Next() {
  const MutexLock lock(mutex_);
  while (!stopping_ && tasks_.empty()) wake_.Wait(mutex_);
  if (tasks_.empty()) return nullptr;
  Task task = std::move(tasks_.front());
  tasks_.pop_front();
  return task;
}

}  // namespace fox
