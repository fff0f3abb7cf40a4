// CallBudget: shares are given back, and neither all clients nor a single one exceed their bounds.
#include "server/calls/limits/call_budget.h"

#include <gtest/gtest.h>

#include <vector>

namespace fox {
namespace {

constexpr int64_t kStep = 4096;  // the unit in which a share takes bytes

TEST(CallBudgetTest, SharesGiveBackWhatTheyHold) {
  CallBudget budget(4, 100 * kStep);
  {
    absl::StatusOr<CallBudget::Share> first = budget.TakeShare(1, 10 * kStep);
    absl::StatusOr<CallBudget::Share> second = budget.TakeShare(2, 20);
    ASSERT_TRUE(first.ok() && second.ok());
    EXPECT_TRUE(first->Hold(24 * kStep + 1));
    EXPECT_EQ(budget.calls(), 2);
    EXPECT_EQ(budget.bytes(), 25 * kStep + 20);
    EXPECT_TRUE(first->Hold(-20 * kStep - 1));
    EXPECT_EQ(budget.bytes(), 5 * kStep + 20);  // a step is kept
    CallBudget::Share moved = *std::move(second);
    second = absl::CancelledError();
    EXPECT_EQ(budget.calls(), 2);
    EXPECT_TRUE(first->Hold(-4 * kStep));
    EXPECT_EQ(budget.bytes(), kStep + 20);
  }
  EXPECT_EQ(budget.calls(), 0);
  EXPECT_EQ(budget.bytes(), 0);
}

TEST(CallBudgetTest, WhatTheMessageTookGoesWithTheFirstAnswer) {
  CallBudget budget(4, 100 * kStep);
  CallBudget::Share share = *budget.TakeShare(1, 10);
  share = *budget.TakeShare(1, 40 * kStep);  // the old one is given back
  EXPECT_EQ(budget.calls(), 1);
  EXPECT_EQ(budget.bytes(), 40 * kStep);
  EXPECT_TRUE(share.Hold(1));
  EXPECT_EQ(budget.bytes(), kStep + 1);
}

TEST(CallBudgetTest, NoClientTakesWhatIsKeptForOthers) {
  CallBudget budget(4, 100 * kStep);
  std::vector<CallBudget::Share> shares;
  const auto take = [&](uint64_t client, int64_t bytes) {
    absl::StatusOr<CallBudget::Share> share = budget.TakeShare(client, bytes);
    if (!share.ok()) return false;
    shares.push_back(*std::move(share));
    return true;
  };
  EXPECT_EQ(budget.TakeShare(1, 50 * kStep + 1).status(), MessageTooLarge());
  EXPECT_TRUE(take(1, 20 * kStep));
  EXPECT_TRUE(take(1, 30 * kStep));
  EXPECT_FALSE(shares.back().Hold(30 * kStep + 1));
  EXPECT_TRUE(take(1, 0));
  EXPECT_FALSE(take(1, 0));  // the last call is not for the client that has all others
  EXPECT_TRUE(absl::IsResourceExhausted(budget.TakeShare(1, 0).status()));
  EXPECT_FALSE(budget.Exceeds(3, 50 * kStep));
  EXPECT_TRUE(budget.Exceeds(4, 0) && budget.Exceeds(0, 50 * kStep + 1));
  EXPECT_TRUE(take(2, 40 * kStep));
  EXPECT_TRUE(shares.back().Hold(50 * kStep));
  EXPECT_EQ(budget.bytes(), 100 * kStep);
  EXPECT_FALSE(take(3, 0));  // the calls are used up
  EXPECT_FALSE(shares.back().Hold(1));
  EXPECT_EQ(budget.bytes(), 100 * kStep);
  shares.clear();
  EXPECT_EQ(budget.bytes(), 0);
  EXPECT_TRUE(take(3, 50 * kStep));
}

// The only share of a budget exceeds it exactly where Hold fails, whatever its message took.
TEST(CallBudgetTest, AShareKnowsWhatItCanNeverHold) {
  for (const int64_t message : {int64_t{0}, int64_t{10}, 7 * kStep + 1}) {
    SCOPED_TRACE(message);
    CallBudget budget(4, 100 * kStep);
    CallBudget::Share share = *budget.TakeShare(1, message);
    int64_t held = 0;
    while (!share.Exceeds(kStep / 3, 0)) {
      ASSERT_TRUE(share.Hold(kStep / 3)) << held;
      held += kStep / 3;
    }
    EXPECT_FALSE(share.Hold(kStep / 3));
    EXPECT_GT(held, 48 * kStep);
    EXPECT_TRUE(share.Exceeds(1 - held, 50 * kStep));
  }
}

TEST(CallBudgetTest, ReportsTheClientThatHoldsMost) {
  EXPECT_TRUE(CallBudget(1, 100).TakeShare(1, 0).ok());  // a budget of one call serves it
  CallBudget budget(100, 100);
  EXPECT_FALSE(budget.HoldsMost(1));
  std::vector<CallBudget::Share> shares;
  for (int i = 0; i < 9; ++i) shares.push_back(*budget.TakeShare(1, 0));
  EXPECT_TRUE(budget.HoldsMost(1));
  shares.push_back(*budget.TakeShare(2, 0));
  EXPECT_TRUE(budget.HoldsMost(1));
  EXPECT_FALSE(budget.HoldsMost(2));
  EXPECT_TRUE(budget.HoldsMost(1, 8));
  EXPECT_FALSE(budget.HoldsMost(1, 9));
}

}  // namespace
}  // namespace fox
