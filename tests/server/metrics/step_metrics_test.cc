// StepMetrics: which steps count as prefill, and the duration of steps that overlap.
#include "server/metrics/step_metrics.h"

#include <gtest/gtest.h>

#include "engine/base/steady_clock.h"

namespace fox {
namespace {

StepPlan PlanOf(const std::vector<int>& tokens) {
  StepPlan plan;
  for (int count : tokens) {
    plan.sequences.emplace_back().token_ids.assign(static_cast<size_t>(count), 1);
  }
  return plan;
}

uint64_t Total(const prometheus::Histogram& histogram) {
  return histogram.Collect().histogram.sample_count;
}

double Sum(const prometheus::Histogram& histogram) {
  return histogram.Collect().histogram.sample_sum;
}

TEST(StepMetricsTest, AStepThatFeedsAPromptIsPrefill) {
  StepMetrics metrics;
  StepPlan release;
  release.release_slots = {1};
  for (const StepPlan& plan : {PlanOf({1, 5}), PlanOf({1, 1, 1}), PlanOf({1}), release}) {
    metrics.BeforeSubmit(plan);
    metrics.AfterCollect(plan, {});
  }
  EXPECT_EQ(Total(metrics.prefill_seconds), 1u);
  EXPECT_EQ(Total(metrics.decode_seconds), 2u);
  EXPECT_EQ(Total(metrics.tokens), 3u);
  EXPECT_EQ(Sum(metrics.tokens), 10);
}

// With two plans in flight the durations of steps add up to the time that passed, not to twice it.
TEST(StepMetricsTest, OverlappingStepsAreNotCountedTwice) {
  StepMetrics metrics;
  const StepPlan plan = PlanOf({1});
  const Seconds start = SteadySeconds();
  metrics.BeforeSubmit(plan);
  for (int i = 0; i < 50; ++i) {
    metrics.BeforeSubmit(plan);
    const Seconds begin = SteadySeconds();
    while (SteadySeconds() < begin + 0.0002) {
    }
    metrics.AfterCollect(plan, {});
  }
  EXPECT_EQ(Total(metrics.decode_seconds), 50u);
  EXPECT_GE(Sum(metrics.decode_seconds), 50 * 0.0002 - 50e-6);
  EXPECT_LE(Sum(metrics.decode_seconds), SteadySeconds() - start + 50e-6);
}

}  // namespace
}  // namespace fox
