// Every order of a few events over four pages; and that this, too, finds bugs.
#include "tests/engine/sim/small_scope.h"

#include <cstdio>

#include "gtest/gtest.h"

namespace fox::sim {
namespace {

TEST(SmallScopeTest, EveryOrderOfEightEvents) {
  const ScopeReport report = ExploreSmallScope(8);
  EXPECT_EQ(report.violation, "");
  std::printf("%lld days, %lld steps\n", static_cast<long long>(report.days),
              static_cast<long long>(report.marks[Mark::kSteps]));
  for (const Mark mark : {Mark::kPreemptions, Mark::kPagesEvicted, Mark::kExpired, Mark::kStalled,
                          Mark::kTooManyStalled, Mark::kDisplaced, Mark::kPauses,
                          Mark::kCancelledRunning, Mark::kCancelledWaiting, Mark::kFinished}) {
    EXPECT_GT(report.marks[mark], 0) << Name(mark) << " never happened";
  }
}

TEST(SmallScopeTest, FindsBugs) {
  for (const Bug bug : {Bug::kLeakOnRelease, Bug::kIgnoreCancel, Bug::kEvictEarly, Bug::kLoseWakeup,
                        Bug::kOverPool, Bug::kIgnoreDeadline}) {
    EXPECT_NE(ExploreSmallScope(6, bug).violation, "") << Name(bug);
  }
}

}  // namespace
}  // namespace fox::sim
