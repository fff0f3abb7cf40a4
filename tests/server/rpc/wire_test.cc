// The wire: deadlines on the engine's clock; every absl code has its gRPC code; a status message is
// short and not cut inside of a character.
#include "server/rpc/wire.h"

#include <gtest/gtest.h>

#include <string>

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

TEST(WireTest, StatusCodesAreEqualButNeverUnknown) {
  EXPECT_TRUE(ToGrpc(absl::OkStatus()).ok());
  for (int code = 1; code <= 16; ++code) {
    SCOPED_TRACE(code);
    const grpc::Status status = ToGrpc(absl::Status(static_cast<absl::StatusCode>(code), "why"));
    const bool ours = code == 2 || code == 15;  // UNKNOWN, DATA_LOSS
    EXPECT_EQ(status.error_code(), ours ? grpc::INTERNAL : static_cast<grpc::StatusCode>(code));
    EXPECT_EQ(status.error_message(), "why");
  }
}

TEST(WireTest, LongStatusMessagesAreCutBetweenCharacters) {
  std::string message(1, 'x');
  for (int i = 0; i < 1000; ++i) message += "\xc3\xa9";
  const std::string cut = ToGrpc(absl::InternalError(message)).error_message();
  EXPECT_EQ(cut.size(), 1023u);
  EXPECT_EQ(cut, message.substr(0, 1023));
}

}  // namespace
}  // namespace fox
