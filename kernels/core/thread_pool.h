// ThreadPool: threads that share loops, of the CPU backend, of grammars' masks and of starts. A
// decode step is some eighty short parallel loops, so the time to wake up dominates: threads spin,
// then yield their core repeatedly (which keeps a busy machine fast), and sleep only after a while
// without work.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace fox {

// One thread at a time calls ForEach; it takes part in the work.
class ThreadPool {
 public:
  // At least 1; `threads` - 1 are started. Throws std::system_error if a thread cannot start.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  // body(i) for each i in [0, count), assigned in order, each run by exactly one thread; it must
  // not throw. Returns when all are done. `parallel` false runs the loop here, for loops too short
  // to wake other threads.
  template <typename Body>
  void ForEach(int64_t count, bool parallel, const Body& body) {
    if (!parallel || count < 2 || workers_.empty()) {
      for (int64_t i = 0; i < count; ++i) body(i);
      return;
    }
    Run({[](const void* b, int64_t i) { (*static_cast<const Body*>(b))(i); }, &body, count});
  }

 private:
  struct Task {
    void (*call)(const void* body, int64_t index) = nullptr;
    const void* body = nullptr;
    int64_t count = 0;
  };
  ThreadPool() = default;
  void Run(const Task& task);
  void Work();
  void TakeIndices();

  std::vector<std::thread> workers_;
  Task task_;  // stable while any of its indices is not done
  // The task's count in the upper half, the next index in the lower, so that a thread takes an
  // index and learns whether it belongs to the current task in one operation.
  std::atomic<uint64_t> arrival_counter_{0};
  std::atomic<int64_t> done_{0};    // indices of the task
  std::atomic<uint32_t> round_{0};  // counts tasks; idle workers sleep on it
  std::atomic<bool> stop_{false};
};

// Threads for the work of a start, on weights and files: one per core, at most 16.
int StartThreads();

// The least number of elements for which waking the other threads pays.
inline constexpr int64_t kParallelElements = 16384;

}  // namespace fox
