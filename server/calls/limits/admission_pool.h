// AdmissionPool: the threads that parse and tokenize, so that gRPC's threads and the engine's never
// do. Clients take turns by the bytes of their messages (self-clocked fair queueing: Golestani,
// INFOCOM 1994), and small messages come before large ones. Large messages have one thread, which
// yields the processor to all others: they delay no other thread, and only one of them at a time is
// in memory parsed.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <thread>
#include <unordered_map>
#include <vector>

#include "engine/base/mutex.h"

namespace fox {

// All methods may be called from any thread.
class AdmissionPool {
 public:
  using Task = std::function<void()>;

  // A message of more bytes is large: a text of a quarter of it is tokenized in about 20 ms.
  static constexpr int64_t kLargeBytes = 256 << 10;
  // Instead of a number of threads: the owner calls RunNext, as a simulation does.
  static constexpr int kNoThreads = -1;

  // `threads_for_small`: threads beside the one for large messages; 0: that thread takes small
  // messages too. `all_nice`: all threads yield the processor to others.
  explicit AdmissionPool(int threads_for_small, bool all_nice = false);
  ~AdmissionPool();  // runs all queued tasks

  // Queues a task of `client` that costs `bytes`.
  void Post(uint64_t client, int64_t bytes, Task task);
  // The number of tasks that wait for a thread: of all clients, and of one.
  size_t queued() const;
  int64_t queued(uint64_t client) const;
  // With kNoThreads: runs the next task. False: none was queued.
  bool RunNext();

 private:
  struct Entry {
    uint64_t client;
    Task task;
  };
  using Queue = std::multimap<int64_t, Entry>;  // by virtual time of the task's end

  // Waits for the next small or large task; empty: the pool is stopping and no such task is left.
  Task WaitForTask(bool small, bool large);
  // Takes the next task; empty: none is queued.
  Task TakeTask(bool small, bool large) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable Mutex mutex_;
  CondVar wake_;
  Queue small_ ABSL_GUARDED_BY(mutex_), large_ ABSL_GUARDED_BY(mutex_);
  // Virtual time is in bytes. `now_`: the end of the task that was taken last. An account without
  // queued tasks is forgotten.
  int64_t now_ ABSL_GUARDED_BY(mutex_) = 0;
  struct Account {
    int64_t end = 0;  // of the client's last queued task
    int64_t queued = 0;
  };
  std::unordered_map<uint64_t, Account> clients_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace fox
