// Engine: examples over the simulation's executor, with one step or two in flight. The promises of
// engine.h and request.h are checked by the simulation (tests/engine/sim).
#include "engine/engine.h"

#include <algorithm>

#include "kernels/paging/paged_kv.h"
#include "tests/engine/engine_fixture.h"

namespace fox {
namespace {

// The snapshot that the request would start from takes all pages, so it starts without.
TEST_P(EngineTest, ASnapshotThatFillsThePoolHoldsNoRequestUp) {
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

TEST_P(EngineTest, EvictionsAreCounted) {
  FakeOptions fake = Roomy();
  fake.limits.num_pages = 6;
  fake.min_window = fake.max_window = 1;
  Start(fake);
  ASSERT_TRUE(engine_->Submit(MakeRequest(1, 400, 50), 0).ok());
  RunToEnd();
  const AcpStats& acp = received_[1].finish->stats.acp;
  EXPECT_LE(acp.peak_pages, 6);
  EXPECT_EQ(engine_->stats().pages_evicted, acp.pages_evicted);
  EXPECT_GT(acp.max_log_evicted_mass, kNoMass);
  EXPECT_EQ(engine_->stats().max_log_evicted_mass, acp.max_log_evicted_mass);
}

// The executor's rows lose one each.
TEST_P(EngineTest, RowsLoseForThePromptOrForTheAnswer) {
  Start(Roomy());
  ASSERT_TRUE(engine_->Submit(MakeRequest(1, 300, 50), 0).ok());
  RunToEnd();
  const AcpStats& acp = received_[1].finish->stats.acp;
  EXPECT_EQ(acp.prompt_lost.sum, 300);
  EXPECT_EQ(acp.answer_lost.sum, 49);  // the last token is not fed
  EXPECT_EQ(acp.prompt_lost.max_log, 299);
  EXPECT_EQ(acp.answer_lost.max_log, 348);
}

// Rows of a prompt that are kept give the log-probabilities that are reported, in chunks of few
// rows and after a preemption, each row once.
TEST_P(EngineTest, RowsOfAPromptAreThoseThatScoreIt) {
  FakeOptions fake = Roomy();
  fake.limits.num_pages = 12;
  Request scored = MakeRequest(1, 100, 0), kept = scored;  // logits depend on the id
  scored.sampling.prompt_logprobs = 0;
  kept.prompt_rows = std::make_shared<PromptRows>();
  kept.prompt_rows->first = 40;
  kept.prompt_rows->logits.resize((kept.prompt.size() - 1 - 40) *
                                  static_cast<size_t>(fake.limits.vocab_size));
  const std::vector<int32_t> prompt = kept.prompt;
  const std::shared_ptr<PromptRows> rows = kept.prompt_rows;
  for (Request* request : {&scored, &kept}) {
    SCOPED_TRACE(request == &kept);
    Start(fake);
    ASSERT_TRUE(engine_->Submit(MakeRequest(3, 90, 200), 0).ok());
    ASSERT_TRUE(engine_->Submit(std::move(*request), 0).ok());
    RunToEnd();
    EXPECT_TRUE(received_[1].finish->status.ok());
    if (request == &scored) received_[2] = std::exchange(received_[1], {});
    received_.erase(3);
  }
  const auto vocabulary = static_cast<size_t>(executor_->limits().vocab_size);
  EXPECT_TRUE(received_[1].scores.empty());
  for (size_t position = 40; position + 1 < prompt.size(); ++position) {
    SCOPED_TRACE(position);
    const float* row = rows->logits.data() + (position - 40) * vocabulary;
    double sum = 0;
    for (size_t id = 0; id < vocabulary; ++id) sum += std::exp(static_cast<double>(row[id]));
    const auto next = static_cast<size_t>(prompt[position + 1]);
    EXPECT_NEAR(static_cast<double>(row[next]) - std::log(sum),
                static_cast<double>(received_[2].scores[position].logprob), 1e-5);
  }
}

// No token of the step that finds the pool overdrawn is delivered, and nothing goes on.
TEST_P(EngineTest, AnOverdrawnPoolEndsEveryRequestWithUnavailable) {
  FakeOptions fake = Roomy();
  fake.limits.num_pages = 10;
  fake.overstated_pages = fake.limits.lists_per_slot;  // so the scheduler breaks its promise
  fake.reports_pool_faults = true;
  Start(fake);
  for (const RequestId id : {RequestId{1}, RequestId{2}}) {
    SCOPED_TRACE(id);
    ASSERT_TRUE(engine_->Submit(MakeRequest(id, 3, 300), 0).ok());
  }
  RunToEnd();
  EXPECT_EQ(engine_->fatal(),
            absl::UnavailableError("page pool: a step took more pages than were free"));
  for (const RequestId id : {RequestId{1}, RequestId{2}}) {
    SCOPED_TRACE(id);
    const std::vector<int32_t>& got = received_[id].tokens;
    const std::vector<int32_t> all = Reference(MakeRequest(id, 3, 300)).tokens;
    EXPECT_TRUE(absl::IsUnavailable(received_[id].finish->status));
    ASSERT_LT(got.size(), all.size());
    EXPECT_TRUE(std::equal(got.begin(), got.end(), all.begin()));
  }
  EXPECT_TRUE(absl::IsUnavailable(engine_->Submit(MakeRequest(3), 0)));
}

// Masks that take so long that threads share them, until a grammar ends the answer.
TEST_P(EngineTest, AnAnswerDoesNotDependOnTheThreadsThatMatch) {
  if (GetParam().samples_on_device) GTEST_SKIP() << "the executor knows no masks";
  GrammarCompiler compiler([] {
    std::vector<std::string> letters;
    for (int id = 0; id < 50; ++id) letters.emplace_back(1, static_cast<char>('a' + id % 25));
    return letters;
  });
  const char* const regex = "(([a-z]{0,17}[b-z]{0,17}){0,17}[c-z]{0,17}){9}";
  FakeOptions fake = Roomy();
  fake.limits.max_num_seqs = 24;
  std::map<RequestId, Received> alone;
  for (const int threads : {1, 4}) {
    SCOPED_TRACE(threads);
    alone = std::exchange(received_, {});
    EngineOptions options;
    options.matching_threads = threads;
    Start(fake, options);
    for (RequestId id = 0; id < 24; ++id) {
      Request request = MakeRequest(id, 5 + id, 99);
      request.grammar = *compiler.Compile({GrammarSource::Kind::kRegex, regex});
      ASSERT_TRUE(engine_->Submit(std::move(request), 0).ok()) << id;
    }
    RunToEnd();
  }
  for (const auto& [id, received] : received_) {
    SCOPED_TRACE(id);
    EXPECT_EQ(received.tokens, alone[id].tokens);
    EXPECT_EQ(received.finish->status, alone[id].finish->status);
    EXPECT_TRUE(absl::IsInvalidArgument(received.finish->status));  // it took long
  }
}

// Displaced requests, and requests that the engine ends by itself.
std::vector<Request> Samples(const std::vector<RequestId>& ids, size_t prompt,
                             uint64_t client = 0) {
  std::vector<Request> requests;
  for (const RequestId id : ids) {
    requests.push_back(MakeRequest(id, prompt));
    requests.back().client = client;
  }
  return requests;
}

TEST_P(EngineTest, AClientBelowItsShareDisplacesTheNewestOfTheClientWithMost) {
  FakeOptions fake = Roomy();
  fake.limits.max_num_seqs = 1;
  EngineOptions options;
  options.max_num_queued_reqs = 6;
  Start(fake, options);
  ASSERT_TRUE(engine_->Submit(Samples({1}, 5, 7), 0).ok());
  Step();  // runs
  ASSERT_TRUE(engine_->Submit(Samples({2, 3}, 5, 7), 0).ok());
  ASSERT_TRUE(engine_->Submit(Samples({4, 5, 6}, 5, 7), 0).ok());
  ASSERT_TRUE(engine_->Submit(Samples({7}, 5, 8), 0).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(engine_->Submit(Samples({8}, 5, 7), 0)));
  ASSERT_TRUE(engine_->Submit(Samples({9}, 5, 8), 0).ok());  // displaces 4, 5 and 6
  EXPECT_EQ(engine_->stats().rejected, 2);
  EXPECT_EQ(engine_->stats().waiting, 4);
  EXPECT_TRUE(engine_->HasWork());
  Step();
  for (const RequestId id : {RequestId{4}, RequestId{5}, RequestId{6}}) {
    SCOPED_TRACE(id);
    EXPECT_TRUE(absl::IsResourceExhausted(received_[id].finish->status));
    EXPECT_TRUE(received_[id].tokens.empty());
  }
  // Three of six are its share.
  ASSERT_TRUE(engine_->Submit(Samples({10}, 5, 8), 0).ok());
  ASSERT_TRUE(engine_->Submit(Samples({11}, 5, 7), 0).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(engine_->Submit(Samples({12}, 5, 8), 0)));
  RunToEnd();
  EXPECT_EQ(engine_->stats().failed, 0);
  for (const RequestId id : {RequestId{1}, RequestId{2}, RequestId{7}, RequestId{11}}) {
    SCOPED_TRACE(id);
    EXPECT_EQ(received_[id].tokens, Reference(MakeRequest(id)).tokens);
  }
}

// The machine slept with a step in flight, so the reader gets the step's token only now.
TEST_P(EngineTest, AReaderDoesNotStallOnATokenThatItWasNotGiven) {
  EngineOptions options;
  options.stall_timeout = 30;
  Start(Roomy(), options);
  Request request = MakeRequest(1, 5, 50);
  request.flow_window = 1;
  ASSERT_TRUE(engine_->Submit(request, 0).ok());
  Step(0);
  const Seconds woken = GetParam().depth > 1 ? 100 : 0;  // else it has its token at once
  RunToEnd(woken);
  EXPECT_FALSE(received_[1].finish);
  EXPECT_EQ(received_[1].tokens.size(), 1u);
  EXPECT_EQ(engine_->NextDeadline(), woken + 30);
  Step(woken + 30);
  EXPECT_TRUE(absl::IsAborted(received_[1].finish->status));
}

INSTANTIATE_TEST_SUITE_P(Depths, EngineTest,
                         testing::Values(Pipeline{1, false}, Pipeline{1, true}, Pipeline{2, false},
                                         Pipeline{2, true},
                                         Pipeline{2, true, /*fixed_chunks=*/true}),
                         PipelineName);

// Two steps in flight over an executor that samples.
class EnginePipelineTest : public EngineTest {};
INSTANTIATE_TEST_SUITE_P(Depths, EnginePipelineTest, testing::Values(Pipeline{2, true}));

TEST_P(EnginePipelineTest, AStepIsSubmittedBeforeTheLastIsRead) {
  Start();
  ASSERT_TRUE(engine_->Submit(MakeRequest(1, 5, 8), 0).ok());
  Step();
  EXPECT_EQ(executor_->runs(), 1);
  EXPECT_TRUE(received_.empty());
  for (size_t have = 1; have < 8; ++have) {
    SCOPED_TRACE(have);
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

// Reports of kept windows: to requests that ask, at a bounded rate. The simulation checks their
// content (Day::CheckWindows).
class EngineWindowsTest : public EngineTest {
 protected:
  // Heads that keep a page or two.
  void StartForgetting() {
    FakeOptions fake = Roomy();
    fake.min_window = fake.max_window = 2;
    Start(fake);
  }
  void Submit(RequestId id, bool report) {
    Request request = MakeRequest(id, /*prompt=*/300, /*max_tokens=*/40);
    request.report_windows = report;
    ASSERT_TRUE(engine_->Submit(std::move(request), now_).ok());
  }
  // Steps until nothing is left, `seconds` apart.
  void RunAll(Seconds seconds) {
    for (; engine_->HasWork(); now_ += seconds) {
      for (const RequestOutput& output : engine_->Step(now_)) {
        if (output.windows) windows_[output.id].push_back(*output.windows);
      }
    }
  }

  Seconds now_ = 0;
  std::map<RequestId, std::vector<KeptWindows>> windows_;
};

TEST_P(EngineWindowsTest, NotMoreOftenThanTheIntervalForAllTogether) {
  StartForgetting();
  for (RequestId id = 1; id <= 3; ++id) Submit(id, /*report=*/true);
  RunAll(/*seconds=*/kWindowsInterval / 8);
  const double most = now_ / kWindowsInterval + 1;
  for (const auto& [id, windows] : windows_) {
    EXPECT_LE(static_cast<double>(windows.size()), most) << id;
    EXPECT_GE(windows.size(), 3u) << id;
  }
  EXPECT_EQ(windows_.size(), 3u);
}

// Each plan asks for a copy only when a request watches.
TEST_P(EngineWindowsTest, WithoutAWatcherNothingIsRead) {
  struct Watch : StepObserver {
    void BeforeSubmit(const StepPlan& plan) override { asked += plan.read_windows ? 1 : 0; }
    int asked = 0;
  } watch;
  FakeOptions fake = Roomy();
  fake.limits.depth = GetParam().depth;
  fake.limits.samples_on_device = GetParam().samples_on_device;
  executor_ = std::make_unique<FakeExecutor>(fake);
  engine_ = std::make_unique<Engine>(options_, *executor_, std::vector<StepObserver*>{&watch});
  Submit(1, /*report=*/false);
  RunAll(/*seconds=*/1);
  EXPECT_EQ(watch.asked, 0);
  Submit(2, /*report=*/true);
  RunAll(/*seconds=*/1);
  EXPECT_GT(watch.asked, 0);
}

TEST_P(EngineWindowsTest, PagesThatWouldBeHeldAreCountedUntilTheyAreReleased) {
  StartForgetting();
  Submit(1, /*report=*/false);
  int64_t most = 0;
  while (engine_->HasWork()) {
    engine_->Step(now_);
    most = std::max(most, engine_->stats().unpruned_pages);
    EXPECT_GE(engine_->stats().unpruned_pages,
              executor_->options().limits.num_pages - engine_->stats().free_pages);
  }
  EXPECT_EQ(most, 2 * PagesFor(339));  // the last token is not fed
  EXPECT_EQ(engine_->stats().unpruned_pages, 0);
  EXPECT_GT(engine_->stats().pages_evicted, 0);
}

INSTANTIATE_TEST_SUITE_P(Depths, EngineWindowsTest,
                         testing::Values(Pipeline{1, false}, Pipeline{2, false},
                                         Pipeline{2, true}));

}  // namespace
}  // namespace fox
