// StallMonitor: which calls it ends, by a clock of the test's own.
#include "server/calls/limits/stall_monitor.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

namespace fox {
namespace {

constexpr double kTimeout = 8;

class StallMonitorTest : public ::testing::Test {
 protected:
  void LookUntil(Seconds end) {
    for (; now_ < end; now_ += 0.5) monitor_.EndStalled(now_);
  }

  StallMonitor monitor_{kTimeout};
  Seconds now_ = 100;
  int ended_ = 0;
  StallMonitor::Watch watch_{monitor_, [this](const std::string&) { ++ended_; }};
};

TEST_F(StallMonitorTest, AWriteThatTakesLongEndsItsCallOnce) {
  watch_.BeginWrite();
  LookUntil(100 + kTimeout);
  EXPECT_EQ(ended_, 0);
  EXPECT_FALSE(watch_.stalled());
  LookUntil(100 + kTimeout + 1.5);  // the next look is an eighth of the timeout away
  EXPECT_EQ(ended_, 1);
  EXPECT_TRUE(watch_.stalled());
  LookUntil(100 + 3 * kTimeout);
  EXPECT_EQ(ended_, 1);
}

TEST_F(StallMonitorTest, ProgressAndSilenceDoNot) {
  LookUntil(100 + 2 * kTimeout);  // nothing to write
  for (int i = 0; i < 10; ++i) {  // always writing, never the same write
    watch_.BeginWrite();
    LookUntil(now_ + kTimeout - 1);
    watch_.EndWrite();
  }
  EXPECT_EQ(ended_, 0);
}

TEST_F(StallMonitorTest, WhatEndsACallMayEndItsWatch) {
  std::unique_ptr<StallMonitor::Watch> other;
  other = std::make_unique<StallMonitor::Watch>(monitor_, [&](const std::string& reason) {
    other = nullptr;
    EXPECT_EQ(reason, "the reader has stalled: no write was finished for 8 s");
  });
  other->BeginWrite();
  LookUntil(100 + 2 * kTimeout);
  EXPECT_EQ(other, nullptr);
}

// One more than the monitor has room for ends the oldest call of the client that has most.
TEST(BoundedStallMonitorTest, TheOldestOfTheClientWithMostEnds) {
  StallMonitor monitor(kTimeout, /*most=*/3);
  std::vector<std::string> ended;
  std::vector<std::unique_ptr<StallMonitor::Watch>> watches;
  const auto add = [&](const std::string& name, uint64_t client) {
    watches.push_back(std::make_unique<StallMonitor::Watch>(
        monitor, [&, name](const std::string&) { ended.push_back(name); }, client));
  };
  add("a1", 1);
  add("b1", 2);
  add("b2", 2);
  EXPECT_TRUE(ended.empty());
  add("b3", 2);
  EXPECT_EQ(ended, std::vector<std::string>({"b1"}));
  EXPECT_TRUE(watches[1]->stalled());
  add("c1", 3);
  EXPECT_EQ(ended.back(), "b2");
  add("d1", 4);  // now each has one
  EXPECT_EQ(ended.back(), "a1");
  watches.clear();
  for (int i = 0; i < 3; ++i) add("again", 5);
  EXPECT_EQ(ended.size(), 3u);
}

}  // namespace
}  // namespace fox
