// A server under more than it can do at once: full queue, crowding and late calls.
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "tests/e2e/test_server.h"

namespace fox {
namespace {

using Clock = std::chrono::steady_clock;

double MillisecondsSince(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

TestCoreOptions OneSlot() {
  TestCoreOptions options;
  options.max_num_seqs = 1;
  options.max_num_queued_reqs = 2;
  return options;
}

// One client's answers take ten seconds each and hold every running slot, in which they stay but
// for the one that another client gets.
TEST(OverloadTest, OneClientDoesNotKeepAllRunningSlots) {
  constexpr int kSlots = 16, kTokens = 2000;
  TestCoreOptions options;
  options.max_num_seqs = kSlots;
  options.limits.client_metadata = "x-client";
  TestServer server(options);
  server.script->step_delay_us = 5000;
  std::vector<std::unique_ptr<BackgroundStream>> streams;
  for (int i = 0; i < kSlots + 4; ++i) {
    v1::GenerateRequest request = GreedyRequest(absl::StrCat("prompt ", i), kTokens);
    request.mutable_output()->set_logprobs(20);
    streams.push_back(std::make_unique<BackgroundStream>(server, request, "a"));
  }
  ASSERT_TRUE(Eventually([&] {
    const EngineStats stats = server.engine->stats();
    return stats.running == kSlots && stats.waiting == 4;
  }));
  for (int i = 0; i < 3; ++i) {
    grpc::ClientContext context;
    SetTimeout(&context);
    context.AddMetadata("x-client", "b");
    v1::GenerateResponse response;
    const Clock::time_point start = Clock::now();
    const grpc::Status status =
        server.inference->Generate(&context, GreedyRequest("other", 1), &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    // A second and some steps at most, here half of that; a busy machine or a sanitizer take
    // longer. Until one of the answers ends it would be ten seconds.
    EXPECT_LT(MillisecondsSince(start), 5000);
  }
  EXPECT_TRUE(Eventually([&] { return server.engine->stats().running == kSlots; }));
  EXPECT_EQ(server.engine->stats().preemptions, 0);
  for (const auto& stream : streams) stream->context.TryCancel();
  int started = 0;
  for (size_t i = 0; i < streams.size(); ++i) {
    streams[i]->Join();
    if (streams[i]->result.text.empty()) continue;
    ++started;
    const std::string whole = ExpectedText(absl::StrCat("prompt ", i), kTokens);
    EXPECT_EQ(streams[i]->result.text[0], whole.substr(0, streams[i]->result.text[0].size()));
  }
  EXPECT_GE(started, kSlots);
  EXPECT_TRUE(server.WaitIdle());
}

// Calls on their way count: the engine, which is in a step, need not be asked.
TEST(OverloadTest, ARefusalDoesNotWaitForTheStep) {
  TestServer server(OneSlot());
  server.script->step_delay_us = 1000;
  BackgroundStream running(server, GreedyRequest("run", 3000));
  ASSERT_TRUE(Eventually([&] { return server.engine->stats().running == 1; }));
  {
    const std::lock_guard<std::mutex> hangs(server.script->step);
    ASSERT_TRUE(Eventually([&] { return server.script->step_waits.load(); }));
    BackgroundStream first(server, GreedyRequest("wait", 2));
    BackgroundStream second(server, GreedyRequest("wait", 2));
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

// Refused where the queue was known to be too long, else ended.
bool TooLate(const grpc::Status& status) {
  return status.error_code() == grpc::RESOURCE_EXHAUSTED ||
         status.error_code() == grpc::DEADLINE_EXCEEDED;
}

TEST(OverloadTest, DeadlineCoversQueueAndRun) {
  TestCoreOptions options;
  options.max_num_seqs = 1;
  TestServer server(options);
  server.script->step_delay_us = 5000;
  BackgroundStream running(server, GreedyRequest("run", 3000));
  ASSERT_TRUE(Eventually([&] { return server.engine->stats().running == 1; }));
  {
    grpc::ClientContext context;  // waits behind the other one until its time is over
    SetTimeout(&context, 100);
    v1::GenerateResponse response;
    EXPECT_TRUE(TooLate(server.inference->Generate(&context, GreedyRequest("late", 2), &response)));
  }
  {
    grpc::ClientContext context;  // only the server knows this limit
    SetTimeout(&context);
    v1::GenerateRequest request = GreedyRequest("late", 2);
    request.set_queue_timeout_ms(50);
    v1::GenerateResponse response;
    EXPECT_TRUE(TooLate(server.inference->Generate(&context, request, &response)));
  }
  running.context.TryCancel();
  running.Join();
  ASSERT_TRUE(server.WaitIdle());
  grpc::ClientContext context;  // runs out of time while running
  SetTimeout(&context, 200);
  const StreamResult result = ReadStream(*server.inference, GreedyRequest("run", 3000), &context);
  EXPECT_EQ(result.status.error_code(), grpc::DEADLINE_EXCEEDED);
  EXPECT_FALSE(result.text.empty());
  EXPECT_TRUE(server.WaitIdle());
}

}  // namespace
}  // namespace fox
