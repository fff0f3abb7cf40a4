// Events of the call layer without a violation: three million, at night ten; the same seed
// twice gives the same trace. That bugs are found: call_mutants.py.
#include "tests/server/calls/sim/call_day.h"

#include <cstdio>

#include "gtest/gtest.h"
#include "tests/nightly.h"

namespace fox::sim {
namespace {

TEST(CallDayTest, RandomDays) {
  const int64_t events = Amount(3'000'000, 10'000'000);
  CallDayOptions options;
  CallMarks marks;
  for (; marks[CallMark::kEvents] < events; ++options.seed) {
    const CallReport report = SimulateCalls(options);
    ASSERT_EQ(report.violation, "") << Describe(options, report);
    marks.Add(report.marks);
  }
  for (size_t i = 0; i < kCallMarkCount; ++i) {
    const auto mark = static_cast<CallMark>(i);
    std::printf("%-18s %lld\n", Name(mark).c_str(), static_cast<long long>(marks[mark]));
    EXPECT_GT(marks[mark], 0) << Name(mark) << " never happened";
  }
}

TEST(CallDayTest, TheSameSeedGivesTheSameTrace) {
  CallDayOptions options;
  for (; options.seed <= 10; ++options.seed) {
    EXPECT_EQ(SimulateCalls(options).trace, SimulateCalls(options).trace)
        << "seed " << options.seed;
  }
}

}  // namespace
}  // namespace fox::sim
