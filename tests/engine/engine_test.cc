// Engine: examples over the simulation's executor, with one step or two in flight. The promises of
// engine.h and request.h are checked by the simulation (tests/engine/sim).
#include "engine/engine.h"

#include "tests/engine/engine_fixture.h"

namespace fox {
namespace {

TEST_P(EngineTest, GeneratesWhatTheReferenceDoes) {
  Start();
  for (RequestId id = 1; id <= 6; ++id) {
    ASSERT_TRUE(engine_->Submit(MakeRequest(id, 20 * id, 30), 1.0).ok());
  }
  RunToEnd(2.0);
  for (RequestId id = 1; id <= 6; ++id) {
    const Received& r = received_[id];
    EXPECT_EQ(r.tokens, Reference(MakeRequest(id, 20 * id, 30)).tokens);
    ASSERT_TRUE(r.finish);
    EXPECT_TRUE(r.finish->status.ok());
    EXPECT_EQ(r.finish->reason, FinishReason::kLength);
    EXPECT_EQ(r.finish->stats.prompt_tokens, static_cast<int64_t>(20 * id));
    EXPECT_EQ(r.finish->stats.completion_tokens, 30);
    EXPECT_EQ(r.finish->stats.arrival, 1.0);
    EXPECT_EQ(r.finish->stats.first_token, 2.0);
  }
  EXPECT_EQ(executor_->free_pages(), 100);
  EXPECT_EQ(engine_->stats().free_pages, 100);
  EXPECT_EQ(engine_->stats().finished, 6);
  EXPECT_EQ(engine_->stats().generated_tokens, 180);
  EXPECT_EQ(engine_->stats().prompt_tokens, 20 * 21);
}

TEST_P(EngineTest, PreemptionLosesAndRepeatsNothing) {
  FakeOptions tight = Roomy();
  tight.limits.num_pages = 14;
  Start(tight);
  std::map<RequestId, Request> requests;
  for (RequestId id = 1; id <= 4; ++id) {
    Request request = MakeRequest(id, 30, 300);
    request.sampling.prompt_logprobs = 0;
    request.sampling.temperature = 1.0f;
    if (id % 2 == 0) request.sampling.repetition_penalty = 1.5f;
    requests[id] = request;
    ASSERT_TRUE(engine_->Submit(request, 0).ok());
  }
  RunToEnd();
  EXPECT_GT(engine_->stats().preemptions, 0);
  for (const auto& [id, request] : requests) {
    EXPECT_EQ(received_[id].tokens, Reference(request).tokens);
    EXPECT_EQ(received_[id].scores.size(), 29u);
  }
  EXPECT_GT(received_[4].finish->stats.preemptions, 0);
  // Pages of all its lives are counted: more than one life needs.
  EXPECT_GT(received_[4].finish->stats.acp.pages_allocated, 2 * PagesFor(330));
  EXPECT_EQ(received_[4].finish->stats.acp.peak_pages, 2 * PagesFor(329));
}

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

TEST_P(EngineTest, EvictionMakesALongPromptFit) {
  FakeOptions fake = Roomy();
  fake.limits.num_pages = 6;
  fake.min_window = fake.max_window = 1;
  Start(fake);
  const Request request = MakeRequest(1, 400, 50);
  ASSERT_TRUE(engine_->Submit(request, 0).ok());
  RunToEnd();
  EXPECT_TRUE(received_[1].finish->status.ok());
  EXPECT_EQ(received_[1].tokens, Reference(request).tokens);
  const AcpStats& acp = received_[1].finish->stats.acp;
  EXPECT_EQ(acp.pages_allocated, 2 * PagesFor(449));
  EXPECT_EQ(acp.pages_evicted, engine_->stats().pages_evicted);
  EXPECT_LE(acp.peak_pages, 6);
  EXPECT_EQ(acp.log_tolerance, -10.0);
  EXPECT_GT(acp.max_log_evicted_mass, kNoMass);
  EXPECT_LE(acp.max_log_evicted_mass, acp.log_tolerance);
  EXPECT_EQ(engine_->stats().max_log_evicted_mass, acp.max_log_evicted_mass);
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
