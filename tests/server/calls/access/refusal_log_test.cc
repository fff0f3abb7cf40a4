// RefusalLog: all refusals are counted, ten lines a second are logged.
#include "server/calls/access/refusal_log.h"

#include <gtest/gtest.h>

namespace fox {
namespace {

TEST(RefusalLogTest, CountsAllAndLogsTenASecond) {
  ConfigureLog(LogLevel::kError, LogFormat::kText);
  RefusalLog log;
  const absl::Status status = absl::ResourceExhaustedError("full");
  int lines = 0;
  for (int i = 0; i < 100; ++i) lines += log.Add(CallInfo(), RefusalReason::kQueue, status, 5.0);
  EXPECT_EQ(lines, 10);
  EXPECT_FALSE(log.Add(CallInfo(), RefusalReason::kQueue, status, 5.9));
  EXPECT_TRUE(log.Add(CallInfo(), RefusalReason::kQueue, status, 6.0));
  EXPECT_EQ(log.count(), 102);
}

}  // namespace
}  // namespace fox
