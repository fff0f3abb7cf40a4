// LogLimit: so many lines a period, and the next one tells of those that were left out.
#include "server/process/log_limit.h"

#include <gtest/gtest.h>

namespace fox {
namespace {

TEST(LogLimitTest, WhatIsLeftOutIsTold) {
  LogLimit limit(2, 5.0);
  EXPECT_EQ(limit.Take(100), 0);
  EXPECT_EQ(limit.Take(101), 0);
  for (int i = 0; i < 7; ++i) EXPECT_EQ(limit.Take(104.9), std::nullopt);
  EXPECT_EQ(limit.Take(105), 7);
  EXPECT_EQ(limit.Take(105), 0);
  EXPECT_EQ(limit.Take(105), std::nullopt);
}

}  // namespace
}  // namespace fox
