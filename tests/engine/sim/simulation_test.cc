// Many seeds without a violation; the same seed twice gives the same trace; every planted bug is
// found within 100 seeds. FOX_SIM_SEED=n runs one seed, FOX_SIM_SEEDS=n that many.
#include "tests/engine/sim/simulation.h"

#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>

#include "gtest/gtest.h"

namespace fox::sim {
namespace {

constexpr int64_t kOperations = 2000;
constexpr int64_t kDefaultOperations = 1'000'000;

TEST(SimulationTest, RandomDays) {
  const char* one = std::getenv("FOX_SIM_SEED");
  const char* many = std::getenv("FOX_SIM_SEEDS");
  const uint64_t first = one != nullptr ? std::strtoull(one, nullptr, 10) : 1;
  const uint64_t last = one != nullptr    ? first
                        : many != nullptr ? std::strtoull(many, nullptr, 10)
                                          : UINT64_MAX;
  Marks marks;
  uint64_t seed = first;
  for (; seed <= last; ++seed) {
    const Report report = Simulate(seed, kOperations, {}, one != nullptr);
    ASSERT_EQ(report.violation, "") << "seed " << seed;
    marks.Add(report.marks);
    if (many == nullptr && one == nullptr && marks.operations >= kDefaultOperations) break;
  }
  const std::pair<const char*, int64_t> counts[] = {
      {"operations", marks.operations},
      {"steps", marks.steps},
      {"tokens", marks.tokens},
      {"submitted", marks.submitted},
      {"rejected", marks.rejected},
      {"preemptions", marks.preemptions},
      {"evictions", marks.evictions},
      {"cancelled_waiting", marks.cancelled_waiting},
      {"cancelled_running", marks.cancelled_running},
      {"cancelled_preempted", marks.cancelled_preempted},
      {"preempted_paused", marks.preempted_paused},
      {"pauses", marks.pauses},
      {"deadlines", marks.deadlines},
      {"exhausted", marks.exhausted},
      {"numerical", marks.numerical},
      {"faults", marks.faults},
      {"stopped", marks.stopped},
      {"lengths", marks.lengths},
      {"sampled", marks.sampled},
      {"fed_samples", marks.fed_samples},
      {"processed_samples", marks.processed_samples},
      {"restored_states", marks.restored_states},
      {"returns", marks.returns},
      {"late_faults", marks.late_faults},
      {"displaced", marks.displaced},
      {"stalled", marks.stalled},
  };
  for (const auto& [name, count] : counts) {
    RecordProperty(name, std::to_string(count));
    std::printf("%-20s %lld\n", name, static_cast<long long>(count));
    if (one == nullptr) {
      EXPECT_GT(count, 0) << name << " never happened";
    }
  }
}

TEST(SimulationTest, SameSeedSameTrace) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    EXPECT_EQ(Simulate(seed, 500).trace, Simulate(seed, 500).trace) << "seed " << seed;
  }
}

// How many seeds it takes to find the bug; 0: not found.
uint64_t SeedsToFind(Bugs bugs) {
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    if (!Simulate(seed, kOperations, bugs).violation.empty()) return seed;
  }
  return 0;
}

class ExecutorCanaryTest : public testing::TestWithParam<ExecutorBug> {};
TEST_P(ExecutorCanaryTest, IsFound) {
  const uint64_t seeds = SeedsToFind({GetParam(), StreamBug::kNone});
  EXPECT_GT(seeds, 0u);
  std::printf("found at seed %d\n", static_cast<int>(seeds));
}
INSTANTIATE_TEST_SUITE_P(All, ExecutorCanaryTest,
                         testing::Values(ExecutorBug::kLeakOnRelease, ExecutorBug::kDoubleFree,
                                         ExecutorBug::kSwapHeads, ExecutorBug::kEvictEarly,
                                         ExecutorBug::kForgetToEvict, ExecutorBug::kSkipFirstOfPage,
                                         ExecutorBug::kStaleSlot, ExecutorBug::kOverstateFree,
                                         ExecutorBug::kOverstateLive, ExecutorBug::kForeignPage,
                                         ExecutorBug::kWrongLogitRows, ExecutorBug::kStaleSample,
                                         ExecutorBug::kSwapSamples, ExecutorBug::kStaleStates,
                                         ExecutorBug::kForgetCount));

class StreamCanaryTest : public testing::TestWithParam<StreamBug> {};
TEST_P(StreamCanaryTest, IsFound) {
  const uint64_t seeds = SeedsToFind({ExecutorBug::kNone, GetParam()});
  EXPECT_GT(seeds, 0u);
  std::printf("found at seed %d\n", static_cast<int>(seeds));
}
INSTANTIATE_TEST_SUITE_P(All, StreamCanaryTest,
                         testing::Values(StreamBug::kDropToken, StreamBug::kRepeatToken,
                                         StreamBug::kLoseFinish, StreamBug::kIgnoreCancel,
                                         StreamBug::kIgnoreDeadline, StreamBug::kLoseWakeup,
                                         StreamBug::kIgnoreWindow, StreamBug::kOverBudget,
                                         StreamBug::kForgetProgress, StreamBug::kWrongSeed));

}  // namespace
}  // namespace fox::sim
