// Ten million events without a violation (at night a hundred million; fewer under a sanitizer); the
// same seed twice gives the same trace. mutants.py tests that bugs are found. FOX_SIM_SEED=n runs
// one seed, FOX_SIM_EVENTS=n runs n events.
#include "tests/engine/sim/simulation.h"

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/nightly.h"

namespace fox::sim {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(NDEBUG)
const int64_t kEvents = 5'000'000;  // several times as slow
#else
const int64_t kEvents = Amount(10'000'000, 100'000'000);
#endif

TEST(SimulationTest, RandomDays) {
  const char* one = std::getenv("FOX_SIM_SEED");
  const char* many = std::getenv("FOX_SIM_EVENTS");
  DayOptions options;
  if (one != nullptr) options.seed = std::strtoull(one, nullptr, 10);
  const int64_t events = many != nullptr ? std::strtoll(many, nullptr, 10) : kEvents;
  Marks marks;
  for (; marks[Mark::kEvents] < events; ++options.seed) {
    const Report report = Simulate(options);
    ASSERT_EQ(report.violation, "") << Describe(options, report);
    marks.Add(report.marks);
    if (one != nullptr) break;
  }
  for (size_t i = 0; i < kMarkCount; ++i) {
    const int64_t count = marks[static_cast<Mark>(i)];
    const std::string name = Name(static_cast<Mark>(i));
    RecordProperty(name, std::to_string(count));
    std::printf("%-20s %lld\n", name.c_str(), static_cast<long long>(count));
    if (one == nullptr && events >= 50'000'000) {
      EXPECT_GT(count, 0) << name << " never happened";
    }
  }
}

// Days with a mistake of the engine or of the checks. The first: a started prompt got no tokens
// beside urgent ones. In chunks: the first sequence in the queue found no room without snapshots
// and none without slot holders, though giving up both would have been enough; or the count of free
// pages was low, and no sequence ran that could bring a better one; or two sequences gave shared
// pages up in one plan, which was not waited for. The flood: newcomers with slow readers held the
// slots of slow readers, one after the other.
TEST(SimulationTest, DaysThatFailedOnce) {
  DayOptions flood;
  flood.seed = 91000441;
  flood.chunk_multiple = 1;  // which all were then
  flood.operations = 1500;
  flood.flood = true;
  std::vector<DayOptions> days = {flood};
  for (const uint64_t seed : {20001099u, 2005755u, 7014489u, 1015906u, 9001490u, 580332u}) {
    days.emplace_back().seed = seed;
    days.back().chunk_multiple = 1;
  }
  for (const uint64_t seed : {1419u, 2060u, 600423u}) {
    days.emplace_back().seed = seed;
    days.back().chunk_multiple = 128;
  }
  for (const DayOptions& options : days) {
    SCOPED_TRACE(options.seed);
    const Report report = Simulate(options);
    EXPECT_EQ(report.violation, "") << Describe(options, report);
    EXPECT_LT(report.longest_wait, options.flood ? 0.05 : 1);
  }
}

TEST(SimulationTest, SameSeedSameTrace) {
  DayOptions options;
  for (; options.seed <= 20; ++options.seed) {
    EXPECT_EQ(Simulate(options).trace, Simulate(options).trace) << "seed " << options.seed;
  }
}

// The shrunk day still preempts, and has few operations.
TEST(SimulationTest, ShrinksADay) {
  const auto preempts = [](const Report& report) { return report.marks[Mark::kPreemptions] > 0; };
  DayOptions options;
  while (!preempts(Simulate(options))) ++options.seed;
  const DayOptions small = Shrink(options, preempts);
  EXPECT_TRUE(preempts(Simulate(small)));
  const int64_t left = small.operations - static_cast<int64_t>(small.without.size());
  EXPECT_LE(left, 12);
  std::printf("%d operations are left\n", static_cast<int>(left));
}

}  // namespace
}  // namespace fox::sim
