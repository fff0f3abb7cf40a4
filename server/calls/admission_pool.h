// AdmissionPool: the threads that parse and tokenize, so that gRPC's threads and the engine's never
// do. Clients take turns by the bytes of their messages (self-clocked fair queueing: Golestani,
// INFOCOM 1994), and small messages come before large ones. Large ones have one thread, which
// yields the processor to all others: they delay no other thread, and one at a time is in memory
// parsed.
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

  // Beyond, a message is large: a text of a quarter of it is tokenized in about 20 ms.
  static constexpr int64_t kLargeBytes = 256 << 10;

  // Beside the thread for large messages; 0: that one takes small ones too. `all_nice`: all threads
  // yield the processor to others.
  explicit AdmissionPool(int threads_for_small, bool all_nice = false);
  ~AdmissionPool();  // runs what is queued

  // `bytes` of work for `client`.
  void Post(uint64_t client, int64_t bytes, Task task);
  // Tasks that wait for a thread: all, and a client's.
  size_t queued() const;
  int64_t queued(uint64_t client) const;

 private:
  struct Entry {
    uint64_t client;
    Task task;
  };
  using Queue = std::multimap<int64_t, Entry>;  // by virtual time of the end

  // Waits for the next task; empty: the pool is stopping and none is left for this thread.
  Task Next(bool small, bool large);

  mutable Mutex mutex_;
  CondVar wake_;
  Queue small_ ABSL_GUARDED_BY(mutex_), large_ ABSL_GUARDED_BY(mutex_);
  // Virtual time is in bytes: of the end of the task that was taken last, and of each client's last
  // queued task; clients with nothing queued are forgotten.
  int64_t now_ ABSL_GUARDED_BY(mutex_) = 0;
  struct Account {
    int64_t end = 0;
    int64_t queued = 0;
  };
  std::unordered_map<uint64_t, Account> clients_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace fox
