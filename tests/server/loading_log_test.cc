// LoadingLog: a large model logs its progress while it loads, a small one does not.
#include "server/loading_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "server/process/log.h"

namespace fox {
namespace {

std::string LinesOf(double seconds_a_layer) {
  ConfigureLog(LogLevel::kInfo, LogFormat::kJson);
  ::testing::internal::CaptureStderr();
  double now = 1000;
  const LoadProgress progress = LoadingLog(5, [&] { return now; });
  for (int done = 0; done <= 80; ++done, now += seconds_a_layer) progress(done, 80);
  FlushLog(10);
  ConfigureLog(LogLevel::kError, LogFormat::kText);
  return ::testing::internal::GetCapturedStderr();
}

TEST(LoadingLogTest, ALargeModelLogsItsProgress) {
  const std::string lines = LinesOf(0.5);
  for (const char* line : {R"("event":"loading","layers":10,"of":80})", R"("layers":20,)",
                           R"("layers":80,"of":80})"}) {
    EXPECT_THAT(lines, ::testing::HasSubstr(line));
  }
  EXPECT_EQ(std::count(lines.begin(), lines.end(), '\n'), 8);
}

TEST(LoadingLogTest, ASmallModelLogsNothing) { EXPECT_EQ(LinesOf(0.05), ""); }

}  // namespace
}  // namespace fox
