// A server with more requests than it can run: clients' turns, the full queue, deadlines, goodput,
// and thousands of streams that end at once.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>

#include "absl/strings/str_cat.h"
#include "tests/fixtures/test_server.h"

namespace fox {
namespace {

TestCoreOptions OneSlot() {
  TestCoreOptions options;
  options.max_num_seqs = 1;
  options.max_num_queued_reqs = 2;
  return options;
}

// The scheduler takes turns by client.
TEST(OverloadTest, ARequestBelongsToTheNamedClient) {
  struct Clients : StepObserver {
    void OnFinish(const Request& request, const Finish&) override {
      seen.push_back(request.client);
    }
    std::vector<uint64_t> seen;
  } clients;
  TestCoreOptions options;
  options.limits.client_metadata = "x-client";
  options.observers = {&clients};
  {
    TestServer server(options);
    for (const char* name : {"a", "b", "a"}) {
      OpenStream stream(server.channel, GreedyRequest("hello", 2), {{"x-client", name}});
      EXPECT_TRUE(stream.End().ok()) << name;
    }
  }
  ASSERT_EQ(clients.seen.size(), 3u);
  EXPECT_EQ(clients.seen[0], clients.seen[2]);
  EXPECT_NE(clients.seen[0], clients.seen[1]);
}

// Calls on their way to the engine count, so a refusal does not wait for an engine that is in a
// step.
TEST(OverloadTest, ARefusalDoesNotWaitForTheStep) {
  TestServer server(OneSlot());
  server.script->step_delay_us = 1000;
  OpenStream running(server.channel, GreedyRequest("run", 3000));
  ASSERT_TRUE(Eventually([&] { return server.engine->stats().running == 1; }));
  {
    const std::lock_guard<std::mutex> hangs(server.script->step);
    ASSERT_TRUE(Eventually([&] { return server.script->step_waits.load(); }));
    OpenStream first(server.channel, GreedyRequest("wait", 2));
    OpenStream second(server.channel, GreedyRequest("wait", 2));
    ASSERT_TRUE(Eventually([&] { return server.core->admitting() == 2; }));
    grpc::ClientContext context;
    SetTimeout(&context);
    v1::GenerateResponse response;
    EXPECT_EQ(
        server.inference->Generate(&context, GreedyRequest("more", 2), &response).error_message(),
        "the queue is full: too many requests");
    first.context.TryCancel();
    second.context.TryCancel();
  }
  running.context.TryCancel();
  EXPECT_TRUE(server.WaitIdle());
}

// True for both ends of a late call: refused, as the queue is too long, or ended at its deadline.
bool TooLate(const grpc::Status& status) {
  return status.error_code() == grpc::RESOURCE_EXHAUSTED ||
         status.error_code() == grpc::DEADLINE_EXCEEDED;
}

TEST(OverloadTest, DeadlineCoversQueueAndRun) {
  TestCoreOptions options;
  options.max_num_seqs = 1;
  TestServer server(options);
  server.script->step_delay_us = 5000;
  OpenStream running(server.channel, GreedyRequest("run", 3000));
  ASSERT_TRUE(Eventually([&] { return server.engine->stats().running == 1; }));
  {
    grpc::ClientContext context;  // its deadline passes while it waits behind the other call
    SetTimeout(&context, 100);
    v1::GenerateResponse response;
    EXPECT_TRUE(TooLate(server.inference->Generate(&context, GreedyRequest("late", 2), &response)));
  }
  {
    grpc::ClientContext context;  // the limit is queue_timeout_ms, which gRPC does not know
    SetTimeout(&context);
    v1::GenerateRequest request = GreedyRequest("late", 2);
    request.set_queue_timeout_ms(50);
    v1::GenerateResponse response;
    EXPECT_TRUE(TooLate(server.inference->Generate(&context, request, &response)));
  }
  running.context.TryCancel();
  ASSERT_TRUE(server.WaitIdle());
  OpenStream late(server.channel, GreedyRequest("run", 3000), {}, /*milliseconds=*/200);
  EXPECT_EQ(late.End().error_code(), grpc::DEADLINE_EXCEEDED);  // while it runs
  EXPECT_FALSE(late.text.empty());
  EXPECT_TRUE(server.WaitIdle());
}

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// The ends of calls from clients that never rest.
struct Pressure {
  int64_t finished = 0, refused = 0;
  double median_refusal = 0;  // seconds
};

// Each of `clients` clients sends its next call at the end of the one before.
Pressure Press(const TestServer& server, int clients, double seconds) {
  grpc::GenericStub stub(server.Connect());
  Mutex mutex;
  Pressure seen;
  std::vector<double> refusals;
  const auto start = Clock::now();
  RunCalls(clients, [&](int64_t index, std::function<void()> done) {
    if (SecondsSince(start) > seconds) return false;
    const std::string prompt = absl::StrCat("call ", index);
    const auto sent = Clock::now();
    const auto text = std::make_shared<std::string>();
    RawCall::Start(
        stub, {"/fox.v1.Inference/GenerateStream", GreedyRequest(prompt, 20).SerializeAsString()},
        [text](const std::string& bytes) {
          v1::GenerateDelta event;
          EXPECT_TRUE(event.ParseFromString(bytes));
          *text += event.delta().text();
          return true;
        },
        [&, text, prompt, sent, done = std::move(done)](const grpc::Status& status,
                                                        const RawCall::Metadata& trailing) {
          {
            const MutexLock lock(mutex);
            if (status.error_code() == grpc::RESOURCE_EXHAUSTED) {
              EXPECT_EQ(trailing.count("retry-after-ms"), 1u);
              EXPECT_TRUE(text->empty()) << "accepted and dropped";
              refusals.push_back(SecondsSince(sent));
            } else {
              EXPECT_TRUE(status.ok()) << status.error_message();
              EXPECT_EQ(*text, ExpectedText(prompt, 20));
              ++seen.finished;
            }
          }
          done();
        });
    return true;
  });
  seen.refused = static_cast<int64_t>(refusals.size());
  std::sort(refusals.begin(), refusals.end());
  if (!refusals.empty()) seen.median_refusal = refusals[refusals.size() / 2];
  return seen;
}

TEST(OverloadTest, RefusalsAreQuickAndTakeNothingFromTheGoodput) {
  TestCoreOptions options;
  options.max_num_queued_reqs = 16;
  TestServer server(options);
  server.script->step_delay_us = 4000;
  const Pressure peak = Press(server, 8, 1.5), over = Press(server, 200, 1.5);
  EXPECT_GT(over.refused, over.finished);
  EXPECT_LT(over.median_refusal, kInstrumented ? 1 : 0.1);
  EXPECT_GT(10 * over.finished, (kInstrumented ? 2 : 5) * peak.finished);
  EXPECT_TRUE(server.WaitIdle());
}

TEST(OverloadTest, ThousandsOfStreamsEndAtOnce) {
  constexpr int kStreams = 4000, kNoHurry = 1000000000;  // ms: the queue is minutes long
  TestCoreOptions options;
  options.max_num_seqs = 1000;
  options.num_pages = 1000 * 128;
  options.max_num_batched_tokens = 1000;
  options.max_queue_seconds = 0;
  options.max_num_queued_reqs = options.limits.max_calls = 2 * kStreams;
  TestServer server(options);
  server.script->step_delay_us = 50000;
  std::vector<std::unique_ptr<grpc::GenericStub>> stubs;
  std::vector<std::shared_ptr<grpc::ClientContext>> calls;
  std::atomic<int> ended{0};
  for (int i = 0; i < kStreams; ++i) {
    if (i % 1000 == 0) stubs.push_back(std::make_unique<grpc::GenericStub>(server.Connect()));
    calls.push_back(
        RawCall::Start(*stubs.back(),
                       {"/fox.v1.Inference/GenerateStream",
                        GreedyRequest("open", 4000).SerializeAsString(), kNoHurry},
                       nullptr, [&](const grpc::Status&, const RawCall::Metadata&) { ++ended; }));
  }
  EXPECT_TRUE(Eventually([&] {
    const EngineStats stats = server.engine->stats();
    return stats.running + stats.paused + stats.waiting == kStreams;
  })) << ended
      << " have ended";
  const auto start = Clock::now();
  for (const auto& call : calls) call->TryCancel();
  EXPECT_TRUE(server.WaitIdle(60));
  EXPECT_LT(SecondsSince(start), kInstrumented ? 20 : 3);
  EXPECT_TRUE(Eventually([&] { return ended == kStreams; }));
}

}  // namespace
}  // namespace fox
