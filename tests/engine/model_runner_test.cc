// ModelRunner beside what it computes: what it says when the backend has found a fault.
#include "engine/model_runner.h"

#include <gtest/gtest.h>

#include "tests/engine/random_streams.h"

namespace fox {
namespace {

StepPlan OneToken(int64_t position) {
  StepPlan plan;
  PlannedSequence& sequence = plan.sequences.emplace_back();
  sequence.slot = 0;
  sequence.position = position;
  sequence.log_tolerance = -10;
  sequence.token_ids = {1};
  sequence.logit_rows = {0};
  return plan;
}

TEST(ModelRunnerTest, APoolFaultIsUnavailableFromThenOn) {
  auto runner = LoadRunner(GoldenConfig("tiny_fla"));
  ASSERT_TRUE(runner.ok()) << runner.status();
  ASSERT_TRUE((*runner)->Submit(OneToken(0)).ok());
  EXPECT_TRUE((*runner)->Collect().ok());
  *(*runner)->cache().view().pool_fault = PoolFault::kOverdrawn;
  for (int64_t position : {1, 2}) {
    ASSERT_TRUE((*runner)->Submit(OneToken(position)).ok());
    EXPECT_EQ((*runner)->Collect().status(),
              absl::UnavailableError("page pool: a step took more pages than were free"));
  }
}

}  // namespace
}  // namespace fox
