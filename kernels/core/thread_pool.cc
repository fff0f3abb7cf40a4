// Rounds of work: the caller publishes a task by incrementing `round_`, all threads take indices
// until none is left, and the caller waits until all are done. See thread_pool.h.
#include "kernels/core/thread_pool.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <thread>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "kernels/core/check.h"

namespace fox {
namespace {

void Pause() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  __asm__ volatile("isb");  // `yield` takes no time on a processor without hardware threads
#endif
}

// About 10 microseconds of spinning; after that, threads yield their core.
constexpr int kSpins = 500;
// Idle workers sleep after this long; longer than the gaps within a step.
constexpr auto kAwake = std::chrono::milliseconds(2);

// Waits until `done`; returns false after kAwake if `may_give_up`.
template <typename Condition>
bool Await(const Condition& done, bool may_give_up) {
  for (int i = 0; i < kSpins; ++i) {
    if (done()) return true;
    Pause();
  }
  const auto start = std::chrono::steady_clock::now();
  while (!done()) {
    std::this_thread::yield();
    if (may_give_up && std::chrono::steady_clock::now() - start > kAwake) return false;
  }
  return true;
}

}  // namespace

// Delegates to the default constructor, so that the destructor ends the threads that have started
// if a later one cannot start.
ThreadPool::ThreadPool(int threads) : ThreadPool() {
  for (int i = 1; i < threads; ++i) workers_.emplace_back([this] { Work(); });
}

ThreadPool::~ThreadPool() {
  stop_ = true;
  ++round_;
  round_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::Run(const Task& task) {
  FOX_CHECK(task.count > 0 && task.count <= UINT32_MAX);
  task_ = task;
  done_.store(0, std::memory_order_relaxed);
  arrival_counter_.store(static_cast<uint64_t>(task.count) << 32, std::memory_order_release);
  round_.fetch_add(1, std::memory_order_release);
  round_.notify_all();
  TakeIndices();
  Await([&] { return done_.load(std::memory_order_acquire) == task.count; }, false);
}

void ThreadPool::TakeIndices() {
  for (;;) {
    const uint64_t arrival_counter = arrival_counter_.fetch_add(1, std::memory_order_acq_rel);
    const uint64_t index = arrival_counter & 0xffffffffu;
    if (index >= arrival_counter >> 32) return;
    task_.call(task_.body, static_cast<int64_t>(index));
    done_.fetch_add(1, std::memory_order_release);
  }
}

void ThreadPool::Work() {
  uint32_t seen = 0;
  for (;;) {
    const auto moved = [&] { return round_.load(std::memory_order_acquire) != seen; };
    if (!Await(moved, true)) round_.wait(seen, std::memory_order_acquire);
    seen = round_.load(std::memory_order_acquire);
    if (stop_) return;  // after the round: the last one comes after stop_, and no other follows
    TakeIndices();
  }
}

int StartThreads() {
  return static_cast<int>(std::clamp(std::thread::hardware_concurrency(), 1U, 16U));
}

}  // namespace fox
