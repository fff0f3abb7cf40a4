// A server with more requests than it can run: clients' turns, the full queue, and deadlines.
#include <gtest/gtest.h>

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
      BackgroundStream stream(server, GreedyRequest("hello", 2), name);
      stream.Join();
      EXPECT_TRUE(stream.result.status.ok()) << name;
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
  BackgroundStream running(server, GreedyRequest("run", 3000));
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
  running.Join();
  ASSERT_TRUE(server.WaitIdle());
  grpc::ClientContext context;  // its deadline passes while it runs
  SetTimeout(&context, 200);
  const StreamResult result = ReadStream(*server.inference, GreedyRequest("run", 3000), &context);
  EXPECT_EQ(result.status.error_code(), grpc::DEADLINE_EXCEEDED);
  EXPECT_FALSE(result.text.empty());
  EXPECT_TRUE(server.WaitIdle());
}

}  // namespace
}  // namespace fox
