// The scalar functions of the pruning decisions.
#include "kernels/acp.h"

#include <gtest/gtest.h>

namespace fox {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

TEST(Acp, LogAddExp) {
  EXPECT_DOUBLE_EQ(LogAddExp(0, 0), std::log(2));
  EXPECT_DOUBLE_EQ(LogAddExp(-kInfinity, 3), 3);
  EXPECT_DOUBLE_EQ(LogAddExp(3, -kInfinity), 3);
  EXPECT_EQ(LogAddExp(-kInfinity, -kInfinity), -kInfinity);
  EXPECT_DOUBLE_EQ(LogAddExp(1000, 0), 1000);
}

TEST(Acp, LogForgetGateIsStableAndClamped) {
  EXPECT_DOUBLE_EQ(LogForgetGate(0, -128), -std::log(2));
  EXPECT_NEAR(LogForgetGate(40, -128), -std::exp(-40), 1e-30);
  EXPECT_EQ(LogForgetGate(1e6, -128), 0);
  EXPECT_DOUBLE_EQ(LogForgetGate(-50, -128), -50);
  EXPECT_EQ(LogForgetGate(-1e6, -128), -128);
  EXPECT_EQ(MinLogGate(10), -128);
  EXPECT_EQ(MinLogGate(100), -240);
  EXPECT_EQ(MinLogGate(kInfinity), -128);
}

TEST(Acp, NanKeeps) {
  EXPECT_TRUE(MayDrop(-20, 0, -10));
  EXPECT_FALSE(MayDrop(-10, 0, -10));  // the slack is not paid
  EXPECT_FALSE(MayDrop(std::nan(""), 0, -10));
  EXPECT_FALSE(MayDrop(-20, std::nan(""), -10));
  EXPECT_FALSE(MayDrop(-20, 0, -kInfinity));
}

}  // namespace
}  // namespace fox
