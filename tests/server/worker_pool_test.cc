// WorkerPool: everything posted runs, also when the pool goes away at once.
#include "server/worker_pool.h"

#include <gtest/gtest.h>

#include <atomic>

namespace fox {
namespace {

TEST(WorkerPoolTest, TheDestructorRunsWhatIsQueued) {
  std::atomic<int> sum{0};
  {
    WorkerPool pool(3);
    for (int i = 1; i <= 1000; ++i) pool.Post([&sum, i] { sum += i; });
  }
  EXPECT_EQ(sum, 500500);
}

TEST(WorkerPoolTest, OneThreadKeepsTheOrder) {
  std::vector<int> order;
  {
    WorkerPool pool(1);
    for (int i = 0; i < 100; ++i) pool.Post([&order, i] { order.push_back(i); });
  }
  for (int i = 0; i < 100; ++i) EXPECT_EQ(order[static_cast<size_t>(i)], i);
}

}  // namespace
}  // namespace fox
