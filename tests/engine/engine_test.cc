// Engine: the promises of engine.h and request.h, over the simulation's executor, with one step or
// two in flight.
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

TEST_P(EngineTest, StopTokensAreNotEmitted) {
  Start();
  const std::vector<int32_t> free_run = Reference(MakeRequest(1, 5, 20)).tokens;
  Request request = MakeRequest(1, 5, 20);
  request.stop.stop_token_ids = {free_run[3]};
  ASSERT_TRUE(engine_->Submit(request, 0).ok());
  RunToEnd();
  const Finish& finish = *received_[1].finish;
  EXPECT_EQ(finish.reason, FinishReason::kStop);
  EXPECT_EQ(finish.stop_token_id, free_run[3]);
  EXPECT_FALSE(finish.eos);
  const auto first = std::find(free_run.begin(), free_run.end(), free_run[3]);
  EXPECT_EQ(received_[1].tokens, std::vector<int32_t>(free_run.begin(), first));
}

TEST_P(EngineTest, EosMinTokensAndIgnoreEos) {
  EngineOptions options;
  Start();
  options.eos_token_ids = {Reference(MakeRequest(1, 5, 20)).tokens[0]};
  Start(Roomy(), options);
  Request eager = MakeRequest(1, 5, 20);
  ASSERT_TRUE(engine_->Submit(eager, 0).ok());
  RunToEnd();
  EXPECT_TRUE(received_[1].tokens.empty());
  EXPECT_TRUE(received_[1].finish->eos);
  received_.clear();
  eager.stop.min_tokens = 5;
  ASSERT_TRUE(engine_->Submit(eager, 0).ok());
  RunToEnd();
  EXPECT_GE(received_[1].tokens.size(), 5u);
  received_.clear();
  eager.stop.ignore_eos = true;
  ASSERT_TRUE(engine_->Submit(eager, 0).ok());
  RunToEnd();
  EXPECT_EQ(received_[1].tokens.size(), 20u);
  EXPECT_EQ(received_[1].tokens[0], options.eos_token_ids[0]);
}

TEST_P(EngineTest, ScoresAPromptOnly) {
  Start();
  Request request = MakeRequest(1, 100, 0);
  request.sampling.prompt_logprobs = 2;
  ASSERT_TRUE(engine_->Submit(request, 0).ok());
  RunToEnd();
  const Received& r = received_[1];
  EXPECT_TRUE(r.tokens.empty());
  ASSERT_EQ(r.scores.size(), 99u);
  EXPECT_EQ(r.finish->reason, FinishReason::kLength);
  const Expected expected = Reference(request);
  for (size_t i = 0; i < 99; ++i) {
    EXPECT_EQ(r.scores[i].id, request.prompt[i + 1]);
    EXPECT_EQ(r.scores[i].logprob, expected.prompt_logprobs[i].logprob);
    EXPECT_EQ(r.scores[i].top.size(), 2u);
  }
}

TEST_P(EngineTest, MaxTokensIsClampedToTheContext) {
  Start();
  ASSERT_TRUE(engine_->Submit(MakeRequest(1, 490, INT32_MAX), 0).ok());
  ASSERT_TRUE(engine_->Submit(MakeRequest(2, 499, 5), 0).ok());
  EXPECT_EQ(engine_->Submit(MakeRequest(3, 500, 1), 0).code(), absl::StatusCode::kOutOfRange);
  RunToEnd();
  EXPECT_EQ(received_[1].tokens.size(), 10u);
  EXPECT_EQ(received_[1].finish->reason, FinishReason::kLength);
  EXPECT_EQ(received_[2].tokens.size(), 1u);
}

TEST_P(EngineTest, CancelInEveryState) {
  FakeOptions fake = Roomy();
  fake.limits.max_num_seqs = 1;
  fake.limits.max_num_batched_tokens = 64;
  Start(fake);
  ASSERT_TRUE(engine_->Submit(MakeRequest(1, 300), 0).ok());  // mid-prefill
  ASSERT_TRUE(engine_->Submit(MakeRequest(2), 0).ok());       // queued
  ASSERT_TRUE(engine_->Submit(MakeRequest(3, 5, 100), 0).ok());
  Step();
  engine_->Cancel(1, absl::CancelledError("gone"));
  engine_->Cancel(2, absl::OkStatus());
  engine_->Cancel(99, absl::OkStatus());
  Step();
  EXPECT_TRUE(absl::IsCancelled(received_[1].finish->status));
  EXPECT_EQ(received_[2].finish->reason, FinishReason::kAbort);
  Step();
  engine_->Cancel(3, absl::CancelledError("gone"));  // mid-decode
  engine_->Cancel(3, absl::OkStatus());              // the first counts
  EXPECT_TRUE(engine_->HasWork());
  Step();
  EXPECT_TRUE(absl::IsCancelled(received_[3].finish->status));
  EXPECT_EQ(executor_->free_pages(), 100);  // free at once
  EXPECT_EQ(engine_->HasWork(), GetParam().depth > 1);
  RunToEnd();
  EXPECT_EQ(engine_->stats().cancelled, 2);
  EXPECT_EQ(engine_->stats().aborted, 1);
  EXPECT_EQ(engine_->stats().finished, 0);
}

TEST_P(EngineTest, Deadlines) {
  FakeOptions fake = Roomy();
  fake.limits.max_num_seqs = 1;
  Start(fake);
  Request running = MakeRequest(1, 5, 400);
  running.queue_deadline = 2.0;  // met
  running.deadline = 9.0;
  Request waiting = MakeRequest(2);
  waiting.queue_deadline = 3.0;
  ASSERT_TRUE(engine_->Submit(running, 0).ok());
  ASSERT_TRUE(engine_->Submit(waiting, 0).ok());
  EXPECT_EQ(engine_->NextDeadline(), 2.0);
  Step(1.0);
  EXPECT_EQ(engine_->NextDeadline(), 3.0);
  Step(2.5);
  EXPECT_FALSE(received_[1].finish);
  Step(3.0);
  EXPECT_TRUE(absl::IsDeadlineExceeded(received_[2].finish->status));
  EXPECT_EQ(engine_->NextDeadline(), 9.0);
  Step(9.0);
  EXPECT_TRUE(absl::IsDeadlineExceeded(received_[1].finish->status));
  // Those before the deadline were delivered; one or two steps are in flight.
  const size_t delivered = GetParam().depth == 1 ? 3 : GetParam().samples_on_device ? 2 : 1;
  EXPECT_EQ(received_[1].tokens.size(), delivered);
  EXPECT_EQ(engine_->NextDeadline(), kNever);
  EXPECT_EQ(executor_->free_pages(), 100);
}

TEST_P(EngineTest, SlowReadersPause) {
  Start();
  Request slow = MakeRequest(1, 5, 10);
  slow.flow_window = 3;
  ASSERT_TRUE(engine_->Submit(slow, 0).ok());
  RunToEnd();
  EXPECT_EQ(received_[1].tokens.size(), 3u);
  EXPECT_EQ(engine_->stats().paused, 1);
  EXPECT_LT(engine_->stats().free_pages, 100);  // it keeps its pages
  engine_->Acknowledge(1, -5);
  engine_->Acknowledge(1, 1);
  RunToEnd();
  EXPECT_EQ(received_[1].tokens.size(), 3u);  // half of the window is not free
  engine_->Acknowledge(1, 1);
  RunToEnd();
  EXPECT_EQ(received_[1].tokens.size(), 5u);
  for (int i = 0; i < 9 && !received_[1].finish; ++i) {
    engine_->Acknowledge(1, INT64_MAX);  // no more than there is
    RunToEnd();
  }
  EXPECT_EQ(received_[1].tokens, Reference(slow).tokens);
}

TEST_P(EngineTest, PausedSequencesDoNotBlockOthers) {
  FakeOptions fake = Roomy();
  fake.limits.max_num_seqs = 1;
  Start(fake);
  Request slow = MakeRequest(1, 5, 10);
  slow.flow_window = 1;
  ASSERT_TRUE(engine_->Submit(slow, 0).ok());
  RunToEnd(10.0);
  ASSERT_TRUE(engine_->Submit(MakeRequest(2), 10.0).ok());
  RunToEnd(10.0);
  EXPECT_TRUE(received_[2].finish);
  engine_->Acknowledge(1, 1);
  RunToEnd(10.0);
  EXPECT_EQ(received_[1].tokens.size(), 2u);
}

TEST_P(EngineTest, NumericalFailureHitsOneRequestAlone) {
  FakeOptions fake = Roomy();
  fake.nan_requests = {2};
  fake.nan_position = 9;
  Start(fake);
  for (RequestId id = 1; id <= 3; ++id) ASSERT_TRUE(engine_->Submit(MakeRequest(id), 0).ok());
  RunToEnd();
  EXPECT_EQ(received_[2].finish->status.code(), absl::StatusCode::kInternal);
  EXPECT_EQ(received_[2].finish->status.message(), "numerical failure");
  EXPECT_EQ(received_[2].tokens.size(), 5u);  // sampled from rows 4 to 8
  EXPECT_TRUE(engine_->fatal().ok());
  for (const RequestId id : {RequestId{1}, RequestId{3}}) {
    EXPECT_EQ(received_[id].tokens, Reference(MakeRequest(id)).tokens);
  }
}

TEST_P(EngineTest, ExecutorFailureEndsEverything) {
  FakeOptions fake = Roomy();
  fake.limits.max_num_seqs = 1;
  fake.fail_at_run = 2;
  Start(fake);
  ASSERT_TRUE(engine_->Submit(MakeRequest(1, 5, 50), 0).ok());
  ASSERT_TRUE(engine_->Submit(MakeRequest(2), 0).ok());
  RunToEnd();
  EXPECT_TRUE(absl::IsUnavailable(received_[1].finish->status));
  EXPECT_TRUE(absl::IsUnavailable(received_[2].finish->status));
  EXPECT_EQ(engine_->fatal().code(), absl::StatusCode::kInternal);
  EXPECT_TRUE(absl::IsUnavailable(engine_->Submit(MakeRequest(3), 0)));
  EXPECT_TRUE(engine_->Step(0).empty());
  EXPECT_EQ(engine_->stats().failed, 2);
}

TEST_P(EngineTest, ExecutorFailureAtCollectionToo) {
  FakeOptions fake = Roomy();
  fake.fail_at_run = 3;
  fake.fail_late = true;
  Start(fake);
  ASSERT_TRUE(engine_->Submit(MakeRequest(1, 5, 50), 0).ok());
  ASSERT_TRUE(engine_->Submit(MakeRequest(2, 5, 50), 0).ok());
  RunToEnd();
  for (const RequestId id : {RequestId{1}, RequestId{2}}) {
    EXPECT_TRUE(absl::IsUnavailable(received_[id].finish->status));
    EXPECT_EQ(received_[id].tokens.size(), 3u);
  }
  EXPECT_EQ(engine_->stats().running, 0);
}

TEST_P(EngineTest, AnIdMayComeAgainWhileItsSurplusIsInFlight) {
  Start();
  Request first = MakeRequest(1, 5, 20);
  const std::vector<int32_t> free_run = Reference(first).tokens;
  first.stop.stop_token_ids = {free_run[3]};
  ASSERT_TRUE(engine_->Submit(first, 0).ok());
  while (!received_[1].finish) Step();
  received_.clear();
  ASSERT_TRUE(engine_->Submit(MakeRequest(1, 5, 20), 0).ok());
  RunToEnd();
  EXPECT_EQ(received_[1].tokens, free_run);
  EXPECT_EQ(executor_->free_pages(), 100);
}

TEST_P(EngineTest, ASoleRequestTooLargeForThePool) {
  FakeOptions fake = Roomy();
  fake.limits.num_pages = 6;
  Start(fake);
  ASSERT_TRUE(engine_->Submit(MakeRequest(1, 190, 100), 0).ok());
  RunToEnd();
  EXPECT_TRUE(absl::IsOutOfRange(received_[1].finish->status));
  EXPECT_EQ(received_[1].tokens.size(), 3u);  // 192 tokens fill the pool
  EXPECT_EQ(executor_->free_pages(), 6);
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

TEST_P(EnginePipelineTest, TheTokenBehindAStopIsDropped) {
  Start();
  const std::vector<int32_t> free_run = Reference(MakeRequest(1, 5, 20)).tokens;
  Request request = MakeRequest(1, 5, 20);
  request.stop.stop_token_ids = {free_run[0]};
  ASSERT_TRUE(engine_->Submit(request, 0).ok());
  Step();
  Step();
  EXPECT_TRUE(received_[1].finish);
  EXPECT_EQ(executor_->samples(), 2);  // one too many
  RunToEnd();
  EXPECT_TRUE(received_[1].tokens.empty());
  EXPECT_EQ(engine_->stats().generated_tokens, 0);
  EXPECT_EQ(executor_->free_pages(), 100);
}

TEST_P(EnginePipelineTest, HostSampledRequestsRunBesideSampledOnes) {
  Start();
  std::map<RequestId, Request> requests;
  for (RequestId id = 1; id <= 4; ++id) {
    Request request = MakeRequest(id, 5, 40);
    request.sampling.temperature = 1.0f;
    request.sampling.presence_penalty = 1.0f;
    if (id % 2 == 0) request.sampling.logprob_token_ids = {7};
    requests[id] = request;
    ASSERT_TRUE(engine_->Submit(request, 0).ok());
  }
  RunToEnd();
  for (const auto& [id, request] : requests) {
    EXPECT_EQ(received_[id].tokens, Reference(request).tokens) << "request " << id;
  }
  EXPECT_EQ(executor_->samples(), 80);
}

}  // namespace
}  // namespace fox
