// What is learnt from steps, and what follows from it.
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
  const std::vector<Work> running(4, {0, 10, 1});
  EXPECT_LT(times.Wait(running, {}, 5), 0.01);  // a running slot is free
  EXPECT_LT(times.Wait(std::vector<Work>(4, {10000, 10, 1}), {}, 5), 0.01);  // whatever prompts run
  EXPECT_NEAR(times.Wait(running, {200, 0, 1}, 8), 0.2, 0.2);                // prompts come before
  // Four slots; twenty requests of 100 + 10 tokens: 0.2 s each.
  EXPECT_NEAR(times.Wait(running, {2000, 200, 20}, 4), 4.4, 0.9);
}

TEST(ServiceTimesTest, TheFirstWhoEndsLeavesASlot) {
  ServiceTimes times;
  for (int i = 0; i < 200; ++i)
    times.RecordStep(i % 3 == 0 ? 100 : 0, 4, kDecode * 4 + (i % 3 == 0 ? 0.1 : 0));
  // Four prompts of a second each, one after another: not half of all four.
  const std::vector<Work> prompts(4, {1000, 1, 1});
  EXPECT_NEAR(times.Wait(prompts, {}, 4), 2.0, 1.0);
  EXPECT_LT(times.Wait({{1000, 1, 1}, {10, 1, 1}, {1000, 1, 1}, {1000, 1, 1}}, {}, 4), 0.2);
  // Behind one other it takes the second, and behind nine no estimate by running ones is known.
  EXPECT_GT(times.Wait(prompts, {0, 1, 1}, 4), times.Wait(prompts, {}, 4));
  EXPECT_GT(times.Wait(prompts, {9000, 9, 9}, 4), 9);
}

TEST(ServiceTimesTest, ExpectsWhatRequestsGenerateWhileTheyHaveASlot) {
  ServiceTimes times;
  EXPECT_EQ(times.ExpectedTokens(10), 10);
  EXPECT_EQ(times.ExpectedTokens(20000), 64);
  for (int i = 0; i < 200; ++i) times.RecordEnd(500, 20000, 1.0);
  EXPECT_EQ(times.ExpectedTokens(40000), 500);
  EXPECT_EQ(times.ExpectedTokens(120000, 3), 1500);
  EXPECT_NEAR(times.ExpectedTokens(800, 3), 20, 1);  // they ask for 40 times what they take
  for (int i = 0; i < 200; ++i) times.RecordPause(64);
  EXPECT_NEAR(times.ExpectedTokens(40000), 64, 1);
}

TEST(ServiceTimesTest, WhatSwappingTakesIsMeasuredBesideTheRest) {
  constexpr double kRate = 1e9;
  ServiceTimes times;
  EXPECT_EQ(times.Prefill(100), 0);
  EXPECT_NEAR(times.Swap(1 << 28, kRate), 0.268, 0.001);
  times.RecordSwap(100, 0, 1 << 28, kRate, 1);  // what the prompt took is unknown
  EXPECT_NEAR(times.Swap(1 << 28, kRate), 0.268, 0.001);
  for (int i = 0; i < 20; ++i) times.RecordStep(1000, 0, 0.1);
  EXPECT_NEAR(times.Prefill(500), 0.05, 1e-3);
  // A quarter of the rate that was expected.
  for (int i = 0; i < 50; ++i) times.RecordSwap(1000, 0, 1 << 28, kRate, 0.1 + 4 * 0.268);
  EXPECT_NEAR(times.Swap(1 << 28, kRate), 4 * 0.268, 0.1);
  EXPECT_NEAR(times.Prefill(500), 0.05, 1e-3);
  // A step that was held up counts as four times what was expected.
  times.RecordSwap(0, 0, 1 << 28, kRate, 1e6);
  EXPECT_LT(times.Swap(1 << 28, kRate), 5 * 0.268);
}

}  // namespace
}  // namespace fox
