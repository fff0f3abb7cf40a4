// CallBudget: what is taken is given back, and neither all clients nor one take more than theirs.
#include "server/call_budget.h"

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

TEST(CallBudgetTest, OneClientGetsHalfAndAllTogetherTheWhole) {
  CallBudget budget(4, 100);
  std::vector<CallBudget::Share> shares;
  EXPECT_TRUE(absl::IsResourceExhausted(budget.Take(1, 51).status()));
  for (uint64_t client : {1, 2}) {
    for (int i = 0; i < 2; ++i) {
      absl::StatusOr<CallBudget::Share> share = budget.Take(client, 20);
      ASSERT_TRUE(share.ok());
      shares.push_back(*std::move(share));
    }
    EXPECT_TRUE(absl::IsResourceExhausted(budget.Take(client, 0).status()));
    EXPECT_FALSE(shares.back().Grow(11));
    EXPECT_TRUE(shares.back().Grow(10));
  }
  EXPECT_EQ(budget.bytes(), 100);
  EXPECT_TRUE(absl::IsResourceExhausted(budget.Take(3, 0).status()));  // the calls are used up
  EXPECT_FALSE(shares.back().Grow(1));
  shares.clear();
  EXPECT_EQ(budget.bytes(), 0);
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
}

}  // namespace
}  // namespace fox
