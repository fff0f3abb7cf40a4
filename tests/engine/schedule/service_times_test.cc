// ServiceTimes: costs learnt from steps, and the estimates that follow.
#include "engine/schedule/service_times.h"

#include "gtest/gtest.h"

namespace fox {
namespace {

constexpr Seconds kPrefill = 0.001, kDecode = 0.01;

void Learn(ServiceTimes* times, int steps = 200) {
  for (int i = 0; i < steps; ++i) {
    const int64_t prefill = i % 3 == 0 ? 100 + 50 * (i % 4) : 0, decodes = i % 9;
    times->RecordStep(
        prefill, decodes,
        kPrefill * static_cast<double>(prefill) + kDecode * static_cast<double>(decodes));
  }
}

TEST(ServiceTimesTest, TellsPrefillFromDecode) {
  ServiceTimes times;
  EXPECT_FALSE(times.known());
  EXPECT_EQ(times.PrefillTokens(1.0, 0), 64);  // carefully
  Learn(&times);
  EXPECT_TRUE(times.known());
  EXPECT_NEAR(static_cast<double>(times.PrefillTokens(0.5, 0)), 500, 25);
  EXPECT_NEAR(static_cast<double>(times.PrefillTokens(0.5, 20)), 300, 25);
  EXPECT_EQ(times.PrefillTokens(0.5, 100), 64);  // at least a page
}

TEST(ServiceTimesTest, OneSlowStepDoesNotSpoilThem) {
  ServiceTimes times;
  Learn(&times);
  times.RecordStep(100, 5, 1000);
  times.RecordStep(100, 5, -1);
  times.RecordStep(0, 0, 7);
  EXPECT_GT(times.PrefillTokens(0.5, 0), 250);
  Learn(&times, 30);
  EXPECT_NEAR(static_cast<double>(times.PrefillTokens(0.5, 0)), 500, 50);
}

TEST(ServiceTimesTest, FollowsAMachineThatChanges) {
  ServiceTimes times;
  Learn(&times);
  for (int i = 0; i < 40; ++i) times.RecordStep(100, 0, 3 * 100 * kPrefill);
  EXPECT_NEAR(static_cast<double>(times.PrefillTokens(0.3, 0)), 100, 10);
}

TEST(ServiceTimesTest, WaitsAreTheWorkAhead) {
  ServiceTimes times;
  Learn(&times);
  const Work running = {0, 40, 4};
  EXPECT_LT(times.Wait(running, {}, 5), 0.01);                 // a running slot is free
  EXPECT_LT(times.Wait({40000, 40, 4}, {}, 5), 0.01);          // whatever prompts run
  EXPECT_NEAR(times.Wait(running, {200, 0, 1}, 8), 0.2, 0.2);  // prompts come before
  // Four slots; twenty requests of 100 + 10 tokens, 0.2 s each.
  EXPECT_NEAR(times.Wait(running, {2000, 200, 20}, 4), 4.4, 0.9);
}

TEST(ServiceTimesTest, ExpectsTheTokensThatRequestsGeneratedBefore) {
  ServiceTimes times;
  EXPECT_EQ(times.ExpectedTokens(10), 10);
  EXPECT_EQ(times.ExpectedTokens(20000), 64);
  for (int i = 0; i < 200; ++i) times.RecordEnd(500, 20000, 1.0);
  EXPECT_EQ(times.ExpectedTokens(40000), 500);
  EXPECT_EQ(times.ExpectedTokens(120000, 3), 1500);
  EXPECT_NEAR(times.ExpectedTokens(800, 3), 20,
              1);  // max_tokens is 40 times the length of the answers
  for (int i = 0; i < 200; ++i) times.RecordPause(64);
  EXPECT_NEAR(times.ExpectedTokens(40000), 64, 1);
}

}  // namespace
}  // namespace fox
