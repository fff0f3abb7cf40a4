// AdmissionPool: whose message is next, which wait for no other, and that everything posted runs.
#include "server/calls/limits/admission_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <string>

namespace fox {
namespace {

constexpr int64_t kSmall = 1000, kLarge = 1 << 20;

// A pool of one thread, which is held until all has been posted: runs in the order of turns.
class OrderTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::promise<void> held;
    pool_.Post(99, 0, [&held, open = gate_.get_future().share()] {
      held.set_value();
      open.wait();
    });
    held.get_future().wait();
  }
  void Post(uint64_t client, int64_t bytes, char name) {
    pool_.Post(client, bytes, [this, name] { order_ += name; });
  }
  std::string Order() {
    std::promise<void> done;
    pool_.Post(98, 1 << 30, [&done] { done.set_value(); });
    gate_.set_value();
    done.get_future().wait();
    return order_;
  }

 private:
  std::promise<void> gate_;
  std::string order_;
  AdmissionPool pool_{0};
};

TEST_F(OrderTest, AClientsMessagesStayInOrder) {
  for (char name : std::string("abc")) Post(1, kSmall, name);
  EXPECT_EQ(Order(), "abc");
}

TEST_F(OrderTest, ClientsTakeTurnsHoweverManyMessagesOneHas) {
  for (char name : std::string("abcd")) Post(1, kSmall, name);
  for (char name : std::string("xy")) Post(2, kSmall, name);
  EXPECT_EQ(Order(), "axbycd");
}

TEST_F(OrderTest, SmallMessagesComeBeforeLargeOnesOfOthers) {
  for (char name : std::string("AB")) Post(1, kLarge, name);
  for (char name : std::string("xyz")) Post(2, kSmall, name);
  EXPECT_EQ(Order(), "xyzAB");
}

TEST_F(OrderTest, ALargeMessageWaitsForNoMoreThanItsOwnBytesOfOthers) {
  Post(1, kLarge, 'A');
  for (int i = 0; i < 10; ++i) Post(2, kLarge / 4, '.');
  EXPECT_EQ(Order(), "...A.......");
}

TEST(AdmissionPoolTest, SmallMessagesDoNotWaitForTheThreadOfLargeOnes) {
  AdmissionPool pool(1);
  std::promise<void> gate, small;
  pool.Post(1, kLarge, [open = gate.get_future().share()] { open.wait(); });
  pool.Post(1, kLarge, [] {});
  pool.Post(1, kSmall, [&small] { small.set_value(); });
  small.get_future().wait();
  EXPECT_GE(pool.queued(), 1u);  // the second large one: there is one thread for them
  gate.set_value();
}

TEST(AdmissionPoolTest, TheDestructorRunsWhatIsQueued) {
  std::atomic<int> runs{0};
  {
    AdmissionPool pool(2);
    for (uint64_t i = 0; i < 1000; ++i)
      pool.Post(i % 7, i % 2 == 0 ? 0 : kLarge, [&runs] { ++runs; });
  }
  EXPECT_EQ(runs, 1000);
}

}  // namespace
}  // namespace fox
