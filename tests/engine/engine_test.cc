// Engine: examples over the simulation's executor, with one step or two in flight. The promises of
// engine.h and request.h are checked by the simulation (tests/engine/sim).
#include "engine/engine.h"

#include "tests/engine/engine_fixture.h"

namespace fox {
namespace {

// What it would start from takes all pages: it tries without.
TEST_P(EngineTest, ASnapshotThatFillsThePoolKeepsNobodyWaiting) {
  FakeOptions fake = Roomy();
  fake.limits.num_pages = 4;
  fake.limits.snapshot_slots = 2;
  EngineOptions options;
  options.prefix_cache_share = 1;
  Start(fake, options);
  ASSERT_TRUE(engine_->Submit(MakeRequest(1, 128, 0), 0).ok());
  RunToEnd();
  ASSERT_EQ(engine_->stats().snapshot_pages, 4);
  ASSERT_TRUE(engine_->Submit(MakeRequest(2, 140, 1), 0).ok());
  RunToEnd();
  ASSERT_TRUE(received_[2].finish);
  EXPECT_TRUE(absl::IsOutOfRange(received_[2].finish->status));
}

// No token of the step that finds the pool overdrawn is delivered, and nothing goes on.
TEST_P(EngineTest, AnOverdrawnPoolEndsEveryRequestWithUnavailable) {
  FakeOptions fake = Roomy();
  fake.limits.num_pages = 10;
  fake.bug = sim::Bug::kOverstateFree;  // so the scheduler breaks its promise
  fake.reports_pool_faults = true;
  Start(fake);
  for (const RequestId id : {RequestId{1}, RequestId{2}}) {
    ASSERT_TRUE(engine_->Submit(MakeRequest(id, 3, 300), 0).ok());
  }
  RunToEnd();
  EXPECT_EQ(engine_->fatal(),
            absl::UnavailableError("page pool: a step took more pages than were free"));
  for (const RequestId id : {RequestId{1}, RequestId{2}}) {
    const std::vector<int32_t>& got = received_[id].tokens;
    const std::vector<int32_t> all = Reference(MakeRequest(id, 3, 300)).tokens;
    EXPECT_TRUE(absl::IsUnavailable(received_[id].finish->status));
    ASSERT_LT(got.size(), all.size());
    EXPECT_TRUE(std::equal(got.begin(), got.end(), all.begin()));
  }
  EXPECT_TRUE(absl::IsUnavailable(engine_->Submit(MakeRequest(3), 0)));
}

INSTANTIATE_TEST_SUITE_P(Depths, EngineTest,
                         testing::Values(Pipeline{1, false}, Pipeline{1, true}, Pipeline{2, false},
                                         Pipeline{2, true}, Pipeline{2, true, 128}),
                         PipelineName);

// What only a pipeline over a sampling executor does.
class EnginePipelineTest : public EngineTest {};
INSTANTIATE_TEST_SUITE_P(Depths, EnginePipelineTest, testing::Values(Pipeline{2, true}));

TEST_P(EnginePipelineTest, AStepIsSubmittedBeforeTheLastIsRead) {
  Start();
  ASSERT_TRUE(engine_->Submit(MakeRequest(1, 5, 8), 0).ok());
  Step();
  EXPECT_EQ(executor_->runs(), 1);
  EXPECT_TRUE(received_.empty());
  for (size_t have = 1; have < 8; ++have) {
    Step();
    EXPECT_EQ(executor_->runs(), static_cast<int64_t>(have) + 1);
    EXPECT_EQ(received_[1].tokens.size(), have);
    EXPECT_EQ(engine_->stats().steps, static_cast<int64_t>(have));
  }
  EXPECT_TRUE(engine_->HasWork());
  Step();  // nothing beyond max_tokens was planned
  EXPECT_EQ(executor_->runs(), 8);
  EXPECT_TRUE(received_[1].finish);
  RunToEnd();
  EXPECT_EQ(executor_->runs(), 9);  // the release
}

}  // namespace
}  // namespace fox
