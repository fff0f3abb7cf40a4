// CallBudget: what is taken is given back, and neither all clients nor one take more than theirs.
#include "server/calls/call_budget.h"

#include <gtest/gtest.h>

#include <vector>

namespace fox {
namespace {

TEST(CallBudgetTest, SharesGiveBackWhatTheyHold) {
  CallBudget budget(4, 100);
  {
    absl::StatusOr<CallBudget::Share> first = budget.Take(1, 10);
    absl::StatusOr<CallBudget::Share> second = budget.Take(2, 20);
    ASSERT_TRUE(first.ok() && second.ok());
    EXPECT_TRUE(first->Grow(15));
    EXPECT_EQ(budget.calls(), 2);
    EXPECT_EQ(budget.bytes(), 45);
    first->Shrink(20);
    EXPECT_EQ(budget.bytes(), 25);
    CallBudget::Share moved = *std::move(second);
    second = absl::CancelledError();
    EXPECT_EQ(budget.calls(), 2);
    first->Shrink(1000);  // no more than it holds
    EXPECT_EQ(budget.bytes(), 20);
  }
  EXPECT_EQ(budget.calls(), 0);
  EXPECT_EQ(budget.bytes(), 0);
}

TEST(CallBudgetTest, AssigningAShareGivesBackTheOldOne) {
  CallBudget budget(4, 100);
  CallBudget::Share share = *budget.Take(1, 10);
  { share = *budget.Take(1, 30); }
  EXPECT_EQ(budget.calls(), 1);
  EXPECT_EQ(budget.bytes(), 30);
}

TEST(CallBudgetTest, NoClientTakesWhatIsKeptForOthers) {
  CallBudget budget(4, 100);
  std::vector<CallBudget::Share> shares;
  const auto take = [&](uint64_t client, int64_t bytes) {
    absl::StatusOr<CallBudget::Share> share = budget.Take(client, bytes);
    if (!share.ok()) return false;
    shares.push_back(*std::move(share));
    return true;
  };
  EXPECT_FALSE(take(1, 51));
  EXPECT_TRUE(take(1, 20));
  EXPECT_TRUE(take(1, 30));
  EXPECT_FALSE(shares.back().Grow(1));
  EXPECT_TRUE(take(1, 0));
  EXPECT_FALSE(take(1, 0));  // the last call is not for who has all others
  EXPECT_TRUE(take(2, 40));
  EXPECT_TRUE(shares.back().Grow(10));
  EXPECT_EQ(budget.bytes(), 100);
  EXPECT_FALSE(take(3, 0));  // the calls are used up
  EXPECT_FALSE(shares.back().Grow(1));
  shares.clear();
  EXPECT_EQ(budget.bytes(), 0);
  EXPECT_TRUE(take(3, 50));
}

TEST(CallBudgetTest, ABudgetOfOneCallServesIt) {
  CallBudget budget(1, 100);
  EXPECT_TRUE(budget.Take(1, 0).ok());
}

TEST(CallBudgetTest, TellsWhoHoldsMost) {
  CallBudget budget(100, 100);
  EXPECT_FALSE(budget.HoldsMost(1));
  std::vector<CallBudget::Share> shares;
  for (int i = 0; i < 9; ++i) shares.push_back(*budget.Take(1, 0));
  EXPECT_TRUE(budget.HoldsMost(1));
  shares.push_back(*budget.Take(2, 0));
  EXPECT_TRUE(budget.HoldsMost(1));
  EXPECT_FALSE(budget.HoldsMost(2));
  EXPECT_TRUE(budget.HoldsMost(1, 8));
  EXPECT_FALSE(budget.HoldsMost(1, 9));
}

}  // namespace
}  // namespace fox
