// The pool's one promise: every index runs exactly once, and ForEach returns after all of them.
#include "kernels/core/thread_pool.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <chrono>
#include <cstdlib>
#include <system_error>

namespace fox {
namespace {

TEST(ThreadPoolTest, EveryIndexRunsOnce) {
  for (int threads : {1, 2, 3, 8}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.threads(), threads);
    for (int64_t count : {0, 1, 2, 7, 1000}) {
      std::vector<int> runs(static_cast<size_t>(count), 0);
      for (int round = 0; round < 50; ++round) {
        pool.ForEach(count, round % 3 != 0, [&](int64_t i) { ++runs[static_cast<size_t>(i)]; });
      }
      for (int n : runs) EXPECT_EQ(n, 50);
    }
  }
}

// Sanitizers need address space, and qemu-user ignores limits of it.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) && !defined(FOX_EMULATED)
TEST(ThreadPoolTest, EndsThoseThatHaveStartedIfOneCannot) {
  const auto start_too_many = [] {
    const rlimit limit{rlim_t{4} << 30, rlim_t{4} << 30};  // for a few hundred stacks
    setrlimit(RLIMIT_AS, &limit);
    try {
      const ThreadPool pool(2000);
    } catch (const std::system_error&) {
      std::_Exit(7);
    }
  };
  EXPECT_EXIT(start_too_many(), ::testing::ExitedWithCode(7), "");
}
#endif

TEST(ThreadPoolTest, WakesAfterSleep) {
  ThreadPool pool(4);
  for (int round = 0; round < 20; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));  // longer than the workers wait
    std::atomic<int> sum{0};
    pool.ForEach(10, true, [&](int64_t i) { sum += static_cast<int>(i); });
    EXPECT_EQ(sum, 45);
  }
}

TEST(ThreadPoolTest, ManyShortRounds) {
  ThreadPool pool(3);
  std::atomic<int64_t> total{0};
  for (int round = 0; round < 5000; ++round) {
    pool.ForEach(3, true, [&](int64_t i) { total.fetch_add(i, std::memory_order_relaxed); });
  }
  EXPECT_EQ(total, 15000);
}

// A worker that wakes for the last task may find that the pool has ended.
TEST(ThreadPoolTest, EndsRightAfterWork) {
  for (int round = 0; round < 3000; ++round) {
    ThreadPool pool(4);
    pool.ForEach(2, true, [](int64_t) {});
  }
}

}  // namespace
}  // namespace fox
