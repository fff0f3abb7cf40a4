// UnfinishedBodies: whose body ends when there is no room.
#include "server/http/port/unfinished_bodies.h"

#include <gtest/gtest.h>

#include <array>
#include <chrono>

namespace fox {
namespace {

class UnfinishedBodiesTest : public ::testing::Test {
 protected:
  // The place of the body that ends for it; -1: none.
  int Grow(size_t body, uint64_t client, int64_t bytes) {
    now_ += std::chrono::seconds(1);
    return PlaceOf(bodies_.Grow(&all_[body], client, bytes, now_));
  }
  int PlaceOf(const UnfinishedBodies::Body* body) const {
    return body == nullptr ? -1 : static_cast<int>(body - all_.data());
  }
  UnfinishedBodies bodies_{100};
  std::array<UnfinishedBodies::Body, 8> all_;
  UnfinishedBodies::Clock::time_point now_;
};

TEST_F(UnfinishedBodiesTest, AClientThatHasMoreThanHalfEndsItsOwn) {
  EXPECT_EQ(Grow(0, 1, 20), -1);
  EXPECT_EQ(Grow(1, 1, 20), -1);
  EXPECT_EQ(Grow(0, 1, 30), -1);  // a half: none but its own ends, though there is room
  EXPECT_EQ(Grow(1, 1, 21), 0);   // it has heard nothing for longest
  bodies_.Remove(&all_[0]);
  EXPECT_EQ(bodies_.MostInTheWay(1), nullptr);
  EXPECT_EQ(bodies_.bytes(), 21);
  EXPECT_EQ(Grow(1, 1, 51), 1);  // alone it is too large
}

TEST_F(UnfinishedBodiesTest, WhenAllIsFullTheClientWithMostMakesRoom) {
  EXPECT_EQ(Grow(0, 1, 25), -1);
  EXPECT_EQ(Grow(1, 1, 20), -1);
  EXPECT_EQ(Grow(2, 2, 40), -1);
  EXPECT_EQ(Grow(3, 3, 15), -1);
  EXPECT_EQ(Grow(4, 4, 1), 0);  // the newcomer is not refused
  bodies_.Remove(&all_[0]);
  EXPECT_EQ(Grow(3, 3, 40), 2);  // two clients have most: the body that has waited longest
  bodies_.Remove(&all_[2]);
  EXPECT_EQ(bodies_.bytes(), 61);
}

// A head has come, and nothing of its body yet.
TEST_F(UnfinishedBodiesTest, ClientsWithoutBytesAreKnownAsLongAsTheirBodies) {
  for (const size_t body : {0, 1, 2}) EXPECT_EQ(Grow(body, 1, 0), -1) << body;
  for (const size_t body : {0, 1}) bodies_.Remove(&all_[body]);
  for (const uint64_t client : {2, 3}) EXPECT_EQ(Grow(client + 1, client, 40), -1) << client;
  EXPECT_EQ(Grow(5, 4, 30), 3);
  bodies_.Remove(&all_[3]);
  bodies_.Remove(&all_[2]);
  EXPECT_EQ(bodies_.bytes(), 70);
}

TEST_F(UnfinishedBodiesTest, WhatIsRemovedTwiceIsRemovedOnce) {
  Grow(0, 1, 30);
  for (int i = 0; i < 2; ++i) bodies_.Remove(&all_[0]);
  EXPECT_EQ(bodies_.bytes(), 0);
  EXPECT_EQ(Grow(0, 2, 50), -1);
}

}  // namespace
}  // namespace fox
