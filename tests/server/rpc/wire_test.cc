// The wire: deadlines on the engine's clock.
#include "server/rpc/wire.h"

#include <gtest/gtest.h>

#include "grpc/support/time.h"

namespace fox {
namespace {

gpr_timespec In(int64_t seconds) {
  return gpr_time_add(gpr_now(GPR_CLOCK_REALTIME), gpr_time_from_seconds(seconds, GPR_TIMESPAN));
}

TEST(WireTest, DeadlinesAreOnTheEnginesClock) {
  EXPECT_NEAR(DeadlineOf(In(30), 1000), 1030, 1);
  EXPECT_NEAR(DeadlineOf(In(-30), 1000), 970, 1);
  EXPECT_EQ(DeadlineOf(gpr_inf_future(GPR_CLOCK_REALTIME), 1000), kNever);
  EXPECT_EQ(DeadlineOf(gpr_inf_future(GPR_CLOCK_MONOTONIC), 1000), kNever);
}

TEST(WireTest, FarDeadlinesDoNotWrap) {
  const int64_t most = int64_t{99999999} * 3600;  // what eight digits of hours can say
  EXPECT_NEAR(DeadlineOf(In(most), 1000), static_cast<double>(most), 2000);
  EXPECT_GT(DeadlineOf(In(INT64_MAX / 2), 1000), 1e9);
}

}  // namespace
}  // namespace fox
