// Log lines: one line for each event, whatever the fields contain, and JSON that parses.
#include "server/process/log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>

namespace fox {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::string Captured(LogFormat format, LogLevel least, const std::function<void()>& write) {
  ConfigureLog(least, format);
  ::testing::internal::CaptureStderr();
  write();
  FlushLog(10);
  ConfigureLog(LogLevel::kError, LogFormat::kText);
  return ::testing::internal::GetCapturedStderr();
}
std::string Captured(LogFormat format, LogLevel least, LogLevel level,
                     const std::vector<LogField>& fields) {
  return Captured(format, least, [&] { Log(level, "event", fields); });
}

TEST(LogTest, JsonQuotesTextAndKeepsNumbers) {
  const std::string line = Captured(LogFormat::kJson, LogLevel::kInfo, LogLevel::kInfo,
                                    {{"id", "a\"\n\\b"},
                                     {"count", int64_t{7}},
                                     {"time", 0.25},
                                     {"worst", -std::numeric_limits<double>::infinity()}});
  EXPECT_THAT(line, HasSubstr(R"("id":"a\"\n\\b","count":7,"time":0.25,"worst":"-inf"})"));
  EXPECT_EQ(line.find('\n'), line.size() - 1);
}

TEST(LogTest, JsonIsUtf8WhateverTheFieldHolds) {
  const std::string line = Captured(LogFormat::kJson, LogLevel::kInfo, LogLevel::kInfo,
                                    {{"a\"b", "\xff\xc3\xa9\xe2\x82"}});
  EXPECT_THAT(line, HasSubstr("\"a\\\"b\":\"\xef\xbf\xbd\xc3\xa9\xef\xbf\xbd\"}"));
}

TEST(LogTest, TheLastLineIsWholeWhateverTheReason) {
  const std::string line = Captured(LogFormat::kJson, LogLevel::kInfo, [] {
    WriteLastLine("the end", ("\"quote\" \n" + std::string(1000, 'x')).c_str());
  });
  EXPECT_THAT(line, HasSubstr(R"("event":"the end","reason":"_quote_ _xxx)"));
  EXPECT_EQ(line.substr(line.size() - 4), "x\"}\n");
}

TEST(LogTest, LinesForPeopleAreForTextAlone) {
  const auto write = [] { LogText("one\ntwo\n"); };
  EXPECT_EQ(Captured(LogFormat::kText, LogLevel::kInfo, write), "one\ntwo\n");
  EXPECT_EQ(Captured(LogFormat::kJson, LogLevel::kInfo, write), "");
}

TEST(LogTest, TextIsOneLineAndLevelsFilter) {
  const std::string line = Captured(LogFormat::kText, LogLevel::kInfo, LogLevel::kWarning,
                                    {{"id", "two words\n"}, {"count", int64_t{7}}});
  EXPECT_THAT(line, HasSubstr(" warning event id=\"two words\\n\" count=7\n"));
  EXPECT_EQ(Captured(LogFormat::kText, LogLevel::kWarning, LogLevel::kInfo, {}), "");
}

// Take returns the number of lines left out before, or nothing if this line is left out, too.
TEST(LogTest, ALimitCountsTheLinesThatItLeavesOut) {
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
