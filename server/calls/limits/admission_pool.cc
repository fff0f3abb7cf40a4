// AdmissionPool: its threads, and the order of its tasks. See admission_pool.h.
#include "server/calls/limits/admission_pool.h"

#include <sys/resource.h>

#include <algorithm>
#include <utility>

#include "kernels/core/check.h"

namespace fox {
namespace {

constexpr int64_t kTaskBytes = 1 << 10;  // the cost of a task beside its bytes
constexpr int kNiceness = 10;            // a tenth of a share

}  // namespace

AdmissionPool::AdmissionPool(int threads_for_small, bool all_nice) {
  for (int i = 0; i <= threads_for_small; ++i) {
    threads_.emplace_back([=, this, large = i == 0, small = i > 0 || threads_for_small == 0] {
      // Linux takes 0 for the calling thread.
      if (large || all_nice) setpriority(PRIO_PROCESS, 0, getpriority(PRIO_PROCESS, 0) + kNiceness);
      // A task's memory is freed without the lock.
      while (const Task task = WaitForTask(small, large)) task();
    });
  }
}

AdmissionPool::~AdmissionPool() {
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
  }
  wake_.NotifyAll();
  for (std::thread& thread : threads_) thread.join();
  while (threads_.empty() && RunNext()) continue;
}

bool AdmissionPool::RunNext() {
  FOX_CHECK(threads_.empty());
  Task task;
  {
    const MutexLock lock(mutex_);
    task = TakeTask(/*small=*/true, /*large=*/true);
  }
  if (!task) return false;
  task();
  return true;
}

void AdmissionPool::Post(uint64_t client, int64_t bytes, Task task) {
  {
    const MutexLock lock(mutex_);
    Account& account = clients_[client];
    account.end = std::max(now_, account.end) + bytes + kTaskBytes;
    ++account.queued;
    (bytes > kLargeBytes ? large_ : small_).emplace(account.end, Entry{client, std::move(task)});
  }
  wake_.NotifyAll();  // not each thread takes each task
}

size_t AdmissionPool::queued() const {
  const MutexLock lock(mutex_);
  return small_.size() + large_.size();
}

int64_t AdmissionPool::queued(uint64_t client) const {
  const MutexLock lock(mutex_);
  const auto account = clients_.find(client);
  return account == clients_.end() ? 0 : account->second.queued;
}

AdmissionPool::Task AdmissionPool::WaitForTask(bool small, bool large) {
  const MutexLock lock(mutex_);
  for (;;) {
    if (Task task = TakeTask(small, large)) return task;
    if (stopping_) return nullptr;
    wake_.Wait(mutex_);
  }
}

AdmissionPool::Task AdmissionPool::TakeTask(bool small, bool large) {
  Queue* queue = nullptr;
  if (small && !small_.empty()) queue = &small_;
  if (large && !large_.empty() &&
      (queue == nullptr || large_.begin()->first < queue->begin()->first)) {
    queue = &large_;
  }
  if (queue == nullptr) return nullptr;
  const auto first = queue->begin();
  now_ = std::max(now_, first->first);
  Entry entry = std::move(first->second);
  queue->erase(first);
  const auto account = clients_.find(entry.client);
  FOX_CHECK(account != clients_.end() && account->second.queued > 0);
  if (--account->second.queued == 0) clients_.erase(account);
  return std::move(entry.task);
}

}  // namespace fox
