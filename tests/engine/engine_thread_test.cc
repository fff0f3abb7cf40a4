// EngineThread: results, listeners that call back, drain, stop, failure, and many threads at once
// (meant for the thread sanitizer too).
#include "engine/engine_thread.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <future>
#include <map>
#include <mutex>
#include <set>
#include <thread>

#include "tests/engine/engine_fixture.h"

#if defined(__SANITIZE_THREAD__)
// The distributions' Abseil is not instrumented: where it drops the last but one reference to a
// Status, the sanitizer does not see the order.
extern "C" const char* __tsan_default_suppressions() { return "race:absl::*Status::Unref\n"; }
#endif

namespace fox {
namespace {

FakeOptions Options() {
  FakeOptions options = Roomy();
  options.limits.num_pages = 60;
  options.limits.max_num_seqs = 8;
  return options;
}

Request RequestOf(RequestId id, int32_t max_tokens = 8) { return MakeRequest(id, 3, max_tokens); }

using OutputSink = std::function<void(RequestOutput output)>;
using SubmitCallback = std::function<void(const absl::Status& status)>;

class FunctionListener final : public SubmissionListener {
 public:
  FunctionListener(OutputSink sink, SubmitCallback on_result)
      : sink_(std::move(sink)), on_result_(std::move(on_result)) {}
  void OnSubmitted(const absl::Status& status) override { on_result_(status); }
  void OnOutput(RequestOutput output, Seconds) override { sink_(std::move(output)); }

 private:
  const OutputSink sink_;
  const SubmitCallback on_result_;
};

class TimedListener final : public SubmissionListener {
 public:
  using Sink = std::function<void(const RequestOutput& output, Seconds when)>;
  explicit TimedListener(Sink sink) : sink_(std::move(sink)) {}
  void OnSubmitted(const absl::Status&) override {}
  void OnOutput(RequestOutput output, Seconds when) override { sink_(output, when); }

 private:
  const Sink sink_;
};

void Submit(EngineThread& thread, std::vector<Request> requests, OutputSink sink,
            SubmitCallback on_result) {
  thread.Submit(std::move(requests),
                std::make_shared<FunctionListener>(std::move(sink), std::move(on_result)));
}

// Submits and waits for the engine's answer.
absl::Status SubmitAndWait(EngineThread& thread, std::vector<Request> requests, OutputSink sink) {
  const auto result = std::make_shared<std::promise<absl::Status>>();
  std::future<absl::Status> future = result->get_future();
  Submit(thread, std::move(requests), std::move(sink),
         [result](const absl::Status& status) { result->set_value(status); });
  return future.get();
}

// Collects one request's outputs.
class Collector {
 public:
  OutputSink Sink() {
    return [this](RequestOutput output) {
      const std::lock_guard<std::mutex> lock(mutex_);
      for (const SampledToken& token : output.tokens) tokens_.push_back(token.id);
      if (output.finish) finish_.set_value(*output.finish);
    };
  }
  Finish Wait() { return finish_.get_future().get(); }
  std::vector<int32_t> tokens() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return tokens_;
  }

 private:
  std::mutex mutex_;
  std::vector<int32_t> tokens_;
  std::promise<Finish> finish_;
};

struct Running {
  explicit Running(FakeOptions options = Options(), const EngineOptions& engine_options = {})
      : executor(std::move(options)), thread(std::make_unique<Engine>(engine_options, executor)) {}
  FakeExecutor executor;
  EngineThread thread;
};

void WaitUntil(const std::function<bool()>& condition) {
  for (int i = 0; i < 10000 && !condition(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_TRUE(condition());
}

// With one step or two in flight.
class EngineThreadDepthTest : public testing::TestWithParam<int> {
 protected:
  static FakeOptions DepthOptions() {
    FakeOptions options = Options();
    options.limits.depth = GetParam();
    options.limits.samples_on_device = GetParam() > 1;
    return options;
  }
};
INSTANTIATE_TEST_SUITE_P(Depths, EngineThreadDepthTest, testing::Values(1, 2));

TEST(EngineThreadTest, TakesAllRequestsOfACallOrNone) {
  EngineOptions engine_options;
  engine_options.max_num_queued_reqs = 2;
  Running running(Options(), engine_options);
  const OutputSink never = [](const RequestOutput&) { ADD_FAILURE(); };
  EXPECT_TRUE(absl::IsOutOfRange(
      SubmitAndWait(running.thread, {RequestOf(1), RequestOf(2), RequestOf(3)}, never)));
  EXPECT_TRUE(
      absl::IsAlreadyExists(SubmitAndWait(running.thread, {RequestOf(4), RequestOf(4)}, never)));
  WaitUntil([&] { return running.thread.idle(); });
  EXPECT_EQ(running.thread.stats().generated_tokens, 0);

  // The ids of refused ones are free again, and the outputs of both come after the result.
  std::vector<std::string> events;
  std::promise<void> done;
  Submit(
      running.thread, {RequestOf(1), RequestOf(4)},
      [&](const RequestOutput& output) {
        if (output.finish) events.push_back("finish " + std::to_string(output.id));
        if (events.size() == 3) done.set_value();
      },
      [&](const absl::Status& status) { events.push_back(status.ok() ? "taken" : "refused"); });
  done.get_future().get();
  EXPECT_EQ(events, (std::vector<std::string>{"taken", "finish 1", "finish 4"}));
}

TEST(EngineThreadTest, ListenersMayCallBack) {
  Running running;
  std::promise<absl::Status> nested_result;
  Collector nested;
  std::promise<void> done;
  ASSERT_TRUE(SubmitAndWait(running.thread, {RequestOf(1)}, [&](const RequestOutput& output) {
                running.thread.Acknowledge(1, 1);
                if (!output.finish) return;
                running.thread.Cancel(1, absl::OkStatus());
                Submit(running.thread, {RequestOf(1)}, nested.Sink(),
                       [&](const absl::Status& s) { nested_result.set_value(s); });
                EXPECT_FALSE(running.thread.idle());
                done.set_value();
              }).ok());
  EXPECT_TRUE(nested_result.get_future().get().ok());
  done.get_future().get();
  EXPECT_TRUE(nested.Wait().status.ok());
  EXPECT_EQ(nested.tokens(), sim::RunReference(RequestOf(1), {}, Options()).tokens);
}

TEST(EngineThreadTest, DeadlinesFireWhileNothingRuns) {
  Running running;
  Collector collector;
  Request request = RequestOf(1, 100);
  request.flow_window = 1;
  request.deadline = running.thread.Now() + 0.05;
  ASSERT_TRUE(SubmitAndWait(running.thread, {request}, collector.Sink()).ok());
  EXPECT_TRUE(absl::IsDeadlineExceeded(collector.Wait().status));
}

TEST_P(EngineThreadDepthTest, DrainRefusesNewRequestsOnly) {
  Running running(DepthOptions());
  Collector collector;
  Request request = RequestOf(1, 20);
  request.flow_window = 10;
  ASSERT_TRUE(SubmitAndWait(running.thread, {request}, collector.Sink()).ok());
  running.thread.Drain();
  EXPECT_TRUE(running.thread.draining());
  EXPECT_TRUE(absl::IsUnavailable(SubmitAndWait(running.thread, {RequestOf(2)}, nullptr)));
  EXPECT_FALSE(running.thread.idle());
  WaitUntil([&] { return collector.tokens().size() == 10; });
  running.thread.Acknowledge(1, 10);
  EXPECT_TRUE(collector.Wait().status.ok());
  WaitUntil([&] { return running.thread.idle(); });
}

TEST_P(EngineThreadDepthTest, StopEndsAllWithUnavailable) {
  Running running(DepthOptions());
  Collector paused;
  Request request = RequestOf(1, 100);
  request.flow_window = 1;
  ASSERT_TRUE(SubmitAndWait(running.thread, {request}, paused.Sink()).ok());
  running.thread.Stop();
  EXPECT_TRUE(absl::IsUnavailable(paused.Wait().status));
  EXPECT_TRUE(absl::IsUnavailable(SubmitAndWait(running.thread, {RequestOf(2)}, nullptr)));
  EXPECT_TRUE(running.thread.idle());
  EXPECT_EQ(running.executor.free_pages(), 60);
  running.thread.Stop();  // again is harmless
}

TEST(EngineThreadTest, HeartbeatGoesOnWhenIdle) {
  Running running;
  for (int i = 0; i < 5; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(60));
    EXPECT_LT(running.thread.HeartbeatAge(), 5.0);
  }
}

// An executor whose device is lost while nothing runs.
class LosableExecutor : public FakeExecutor {
 public:
  using FakeExecutor::FakeExecutor;
  absl::Status Probe() override {
    return lost ? absl::UnavailableError("the device is lost") : absl::OkStatus();
  }
  std::atomic<bool> lost{false};
};

TEST_P(EngineThreadDepthTest, AFailureIsNoticedWhileNothingRuns) {
  LosableExecutor executor(DepthOptions());
  EngineThread thread(std::make_unique<Engine>(EngineOptions(), executor));
  Collector paused;
  Request request = RequestOf(1, 100);
  request.flow_window = 1;
  ASSERT_TRUE(SubmitAndWait(thread, {request}, paused.Sink()).ok());
  WaitUntil([&] { return thread.stats().paused == 1; });
  EXPECT_TRUE(thread.fatal().ok());
  executor.lost = true;
  EXPECT_TRUE(absl::IsUnavailable(paused.Wait().status));
  WaitUntil([&] { return !thread.fatal().ok() && thread.idle(); });
}

// An executor that hangs in Collect until told.
class HangingExecutor : public FakeExecutor {
 public:
  using FakeExecutor::FakeExecutor;
  absl::StatusOr<StepResult> Collect() override {
    gate.get_future().wait();
    gate = std::promise<void>();
    gate.set_value();
    return FakeExecutor::Collect();
  }
  std::promise<void> gate;
};

TEST_P(EngineThreadDepthTest, SubmitDoesNotWaitForAStep) {
  HangingExecutor executor(DepthOptions());
  EngineThread thread(std::make_unique<Engine>(EngineOptions(), executor));
  Collector first, second;
  ASSERT_TRUE(SubmitAndWait(thread, {RequestOf(1)}, first.Sink()).ok());
  WaitUntil([&] { return thread.HeartbeatAge() > 0.2; });  // the step hangs
  std::atomic<bool> answered{false};
  Submit(thread, {RequestOf(2)}, second.Sink(), [&](const absl::Status& status) {
    EXPECT_TRUE(status.ok());
    answered = true;
  });
  EXPECT_FALSE(answered);
  EXPECT_FALSE(thread.idle());
  executor.gate.set_value();
  EXPECT_TRUE(first.Wait().status.ok());
  EXPECT_TRUE(second.Wait().status.ok());
  EXPECT_TRUE(answered);
  WaitUntil([&] { return thread.HeartbeatAge() < 0.2; });
}

TEST_P(EngineThreadDepthTest, StopDoesNotWaitForAHungStepLongerThanItIsTold) {
  HangingExecutor executor(DepthOptions());
  EngineThread thread(std::make_unique<Engine>(EngineOptions(), executor));
  Collector collector;
  ASSERT_TRUE(SubmitAndWait(thread, {RequestOf(1)}, collector.Sink()).ok());
  WaitUntil([&] { return thread.HeartbeatAge() > 0.2; });
  EXPECT_FALSE(thread.Stop(0.05));
  executor.gate.set_value();
  EXPECT_TRUE(thread.Stop(60));
  EXPECT_TRUE(absl::IsUnavailable(collector.Wait().status));
}

TEST(EngineThreadTest, AcknowledgementsOfAHungStepAreAddedUp) {
  HangingExecutor executor(Options());
  EngineThread thread(std::make_unique<Engine>(EngineOptions(), executor));
  Collector collector;
  Request request = RequestOf(1, 20);
  request.flow_window = 2;
  ASSERT_TRUE(SubmitAndWait(thread, {request}, collector.Sink()).ok());
  executor.gate.set_value();
  for (size_t have = 2; have < 20; have += 2) {
    WaitUntil([&] { return collector.tokens().size() == have; });
    thread.Acknowledge(1, 1);
    thread.Acknowledge(1, 1);
  }
  EXPECT_EQ(collector.Wait().reason, FinishReason::kLength);
}

TEST_P(EngineThreadDepthTest, AStepsOutputsReachTheirLaneTogether) {
  DeliveryPool pool(2);
  Running running(DepthOptions());
  running.thread.SetDelivery(&pool);
  std::map<Seconds, size_t> gathered;  // by time, on the lane's thread
  std::set<std::thread::id> threads;
  std::promise<void> done;
  const auto listener = std::make_shared<TimedListener>([&](const RequestOutput&, Seconds when) {
    EXPECT_LE(when, running.thread.Now());
    threads.insert(std::this_thread::get_id());
    ++gathered[when];
    size_t total = 0;
    for (const auto& [time, count] : gathered) total += count;
    if (total == 3 * 8) done.set_value();
  });
  running.thread.Submit({RequestOf(1), RequestOf(2), RequestOf(3)}, listener, /*lane=*/1);
  done.get_future().get();
  EXPECT_EQ(threads.size(), 1u);
  EXPECT_EQ(threads.count(std::this_thread::get_id()), 0u);
  size_t largest = 0;
  for (const auto& [time, count] : gathered) largest = std::max(largest, count);
  EXPECT_EQ(largest, 3u);  // all that a step gave
}

// A simulation's: everything happens in RunTurn and Stop, on the caller's thread.
TEST(EngineThreadTest, WithoutAThreadTheOwnerRunsTheTurns) {
  Seconds now = 0;
  FakeExecutor executor(Options());
  EngineThread thread(
      std::make_unique<Engine>(EngineOptions(), executor), [&now] { return now; },
      /*has_thread=*/false);
  std::vector<Seconds> times;
  absl::Status submitted = absl::UnknownError("not yet");
  const auto submit = [&](RequestId id) {
    Submit(
        thread, {RequestOf(id)}, [&](const RequestOutput&) { times.push_back(now); },
        [&](const absl::Status& status) { submitted = status; });
  };
  submit(1);
  EXPECT_TRUE(absl::IsUnknown(submitted));
  while (!thread.idle()) {
    ++now;
    thread.RunTurn();
    EXPECT_TRUE(submitted.ok());
  }
  EXPECT_EQ(times.size(), 8u);
  EXPECT_EQ(std::set<Seconds>(times.begin(), times.end()).size(), 8u);
  submit(2);
  EXPECT_TRUE(thread.Stop());
  EXPECT_TRUE(absl::IsUnavailable(submitted));
}

TEST(EngineThreadTest, FlushesThatWaitForAStepAreBounded) {
  FakeExecutor executor(Options());
  EngineThread thread(std::make_unique<Engine>(EngineOptions{}, executor), nullptr,
                      /*has_thread=*/false);
  for (int round = 0; round < 2; ++round) {
    SCOPED_TRACE(round);
    for (int i = 0; i < 1024; ++i)
      EXPECT_TRUE(thread.FlushPrefixCache(std::to_string(i)).ok()) << i;
    EXPECT_TRUE(absl::IsResourceExhausted(thread.FlushPrefixCache("one more")));
    EXPECT_TRUE(thread.FlushPrefixCache("7").ok());  // it waits already
    thread.RunTurn();
  }
  EXPECT_EQ(thread.prefix_store(), nullptr);
}

TEST_P(EngineThreadDepthTest, EightThreadsSubmitAndCancel) {
  EngineOptions engine_options;
  engine_options.max_num_queued_reqs = 1000;
  Running running(DepthOptions(), engine_options);
  constexpr int kThreads = 8, kRequests = 60;
  std::atomic<int> accepted{0}, finished{0}, wrong{0};
  std::vector<std::thread> threads;
  threads.reserve(kThreads);
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kRequests; ++i) {
        const RequestId id = running.thread.NextId();
        Request request = RequestOf(id, 1 + (i * 7 + t) % 40);
        request.flow_window = i % 3 == 0 ? 4 : 0;
        const auto tokens = std::make_shared<std::vector<int32_t>>();
        const auto expected = sim::RunReference(request, {}, Options()).tokens;
        const absl::Status status = SubmitAndWait(
            running.thread, {request}, [&, id, tokens, expected](const RequestOutput& output) {
              for (const SampledToken& token : output.tokens) tokens->push_back(token.id);
              running.thread.Acknowledge(id, static_cast<int64_t>(output.tokens.size()));
              if (!output.finish) return;
              const bool whole =
                  output.finish->status.ok() && output.finish->reason == FinishReason::kLength;
              const bool prefix = tokens->size() <= expected.size() &&
                                  std::equal(tokens->begin(), tokens->end(), expected.begin());
              if (!prefix || (whole && *tokens != expected)) ++wrong;
              ++finished;
            });
        if (status.ok()) ++accepted;
        if (i % 4 == 0) running.thread.Cancel(id, absl::CancelledError("gone"));
        running.thread.stats();
        running.thread.HeartbeatAge();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  WaitUntil([&] { return running.thread.idle() && running.thread.stats().free_pages == 60; });
  EXPECT_EQ(accepted, kThreads * kRequests);
  EXPECT_EQ(finished, accepted);
  EXPECT_EQ(wrong, 0);
  running.thread.Stop();
  running.executor.Audit();
  EXPECT_EQ(running.executor.violation(), "");
  EXPECT_EQ(running.executor.free_pages(), 60);
}

TEST_P(EngineThreadDepthTest, StopRacesWithSubmit) {
  for (int round = 0; round < 20; ++round) {
    SCOPED_TRACE(round);
    Running running(DepthOptions());
    std::atomic<int> accepted{0}, finished{0};
    std::vector<std::thread> threads;
    threads.reserve(4);
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&] {
        for (int i = 0; i < 20; ++i) {
          const absl::Status status =
              SubmitAndWait(running.thread, {RequestOf(running.thread.NextId(), 3)},
                            [&](const RequestOutput& output) {
                              if (output.finish) ++finished;
                            });
          if (status.ok()) ++accepted;
        }
      });
    }
    std::this_thread::sleep_for(std::chrono::microseconds(200 * round));
    running.thread.Stop();
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(finished, accepted);
    EXPECT_TRUE(running.thread.idle());
  }
}

}  // namespace
}  // namespace fox
