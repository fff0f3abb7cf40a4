// A server under more than it can do at once: full queue, slow readers, cancelled and late calls.
#include <gtest/gtest.h>

#include <random>
#include <thread>

#include "absl/strings/numbers.h"
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

TEST(OverloadTest, FullQueueIsRefusedQuicklyWithADelay) {
  TestServer server(OneSlot());
  server.script->step_delay_us = 5000;
  BackgroundStream running(server, GreedyRequest("run", 1000));
  ASSERT_TRUE(Eventually([&] { return server.engine->stats().running == 1; }));
  BackgroundStream first(server, GreedyRequest("wait", 2));
  BackgroundStream second(server, GreedyRequest("wait", 2));
  ASSERT_TRUE(Eventually([&] { return server.engine->stats().waiting == 2; }));

  double fastest = 1e9;
  for (int i = 0; i < 5; ++i) {
    grpc::ClientContext context;
    SetTimeout(&context);
    v1::GenerateResponse response;
    const Clock::time_point start = Clock::now();
    const grpc::Status status =
        server.inference->Generate(&context, GreedyRequest("more", 2), &response);
    fastest = std::min(fastest, MillisecondsSince(start));
    ASSERT_EQ(status.error_code(), grpc::RESOURCE_EXHAUSTED) << status.error_message();
    const auto& trailers = context.GetServerTrailingMetadata();
    auto it = trailers.find("retry-after-ms");
    ASSERT_NE(it, trailers.end());
    EXPECT_EQ(trailers.find("grpc-retry-pushback-ms")->second, it->second);
    EXPECT_NE(status.error_details().find("google.rpc.RetryInfo"), std::string::npos);
    int delay = 0;
    ASSERT_TRUE(absl::SimpleAtoi(std::string(it->second.data(), it->second.size()), &delay));
    EXPECT_GE(delay, 100);
  }
  EXPECT_LE(fastest, 10.0);  // the best of five: the machine may be busy
  running.context.TryCancel();
  first.Join();
  second.Join();
  EXPECT_TRUE(first.result.status.ok()) << first.result.status.error_message();
  EXPECT_TRUE(second.result.status.ok());
  EXPECT_TRUE(server.WaitIdle());
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

TEST(OverloadTest, AllSequencesOfACallAreTakenOrNone) {
  TestServer server(OneSlot());
  server.script->step_delay_us = 5000;
  v1::GenerateRequest request = GreedyRequest("many", 100);
  request.mutable_sampling()->set_n(16);
  grpc::ClientContext context;
  SetTimeout(&context);
  const StreamResult result = ReadStream(*server.inference, request, &context);
  EXPECT_EQ(result.status.error_code(), grpc::OUT_OF_RANGE);  // no later time helps
  EXPECT_TRUE(result.text.empty());
  EXPECT_EQ(context.GetServerTrailingMetadata().count("retry-after-ms"), 0u);
  EXPECT_TRUE(server.WaitIdle());
}

TEST(OverloadTest, CancelFreesPagesWithinTwoSteps) {
  TestServer server;
  server.script->step_delay_us = 20000;
  BackgroundStream stream(server, GreedyRequest("cancel me", 3000));
  ASSERT_TRUE(Eventually([&] {
    const EngineStats stats = server.engine->stats();
    return stats.generated_tokens > 3 && stats.free_pages < stats.num_pages;
  }));
  stream.context.TryCancel();
  // The call's end is seen by the server when its sequences leave the engine; count steps from the
  // moment the engine knew.
  ASSERT_TRUE(Eventually([&] { return server.engine->stats().cancelled == 1; }));
  const int64_t known = server.engine->stats().steps;
  ASSERT_TRUE(Eventually([&] {
    const EngineStats stats = server.engine->stats();
    return stats.free_pages == stats.num_pages;
  }));
  EXPECT_LE(server.engine->stats().steps, known + 2);
  stream.Join();
  EXPECT_EQ(stream.result.status.error_code(), grpc::CANCELLED);
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

TEST(OverloadTest, SlowReaderPausesAloneAndLosesNothing) {
  TestServer server;
  // Bulky messages fill the transport's buffers soon.
  v1::GenerateRequest request = GreedyRequest("slow", 2000);
  request.mutable_output()->set_logprobs(20);
  grpc::ClientContext context;
  SetTimeout(&context);
  std::shared_ptr<grpc::Channel> own = server.Connect();
  std::unique_ptr<v1::Inference::Stub> stub = v1::Inference::NewStub(own);
  auto reader = stub->GenerateStream(&context, request);
  ASSERT_TRUE(Eventually([&] { return server.engine->stats().paused == 1; }));
  const int64_t generated = server.engine->stats().generated_tokens;
  EXPECT_LT(generated, 2000);

  grpc::ClientContext other;  // goes on meanwhile
  SetTimeout(&other);
  StreamResult fast = ReadStream(*server.inference, GreedyRequest("fast", 300), &other);
  EXPECT_TRUE(fast.status.ok()) << fast.status.error_message();
  EXPECT_EQ(fast.text.at(0), ExpectedText("fast", 300));
  EXPECT_EQ(server.engine->stats().paused, 1);

  std::string text;
  v1::GenerateDelta event;
  while (reader->Read(&event)) text += event.delta().text();
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_EQ(text, ExpectedText("slow", 2000));
  EXPECT_TRUE(server.WaitIdle());
}

TEST(OverloadTest, DuplicateIdsAreRefusedAndAbortEndsWithAReason) {
  TestServer server;
  server.script->step_delay_us = 5000;
  v1::GenerateRequest request = GreedyRequest("abort me", 3000);
  request.set_request_id("mine");
  request.mutable_sampling()->set_n(2);
  BackgroundStream stream(server, request);
  ASSERT_TRUE(Eventually([&] { return server.engine->stats().running == 2; }));
  {
    grpc::ClientContext context;
    SetTimeout(&context);
    v1::GenerateResponse response;
    EXPECT_EQ(server.inference->Generate(&context, request, &response).error_code(),
              grpc::ALREADY_EXISTS);
  }
  v1::AbortRequest abort;
  abort.add_request_ids("mine");
  abort.add_request_ids("nobody's");
  v1::AbortResponse aborted;
  grpc::ClientContext context;
  SetTimeout(&context);
  ASSERT_TRUE(server.inference->Abort(&context, abort, &aborted).ok());
  ASSERT_EQ(aborted.aborted_size(), 1);
  EXPECT_EQ(aborted.aborted(0), "mine");
  stream.Join();
  EXPECT_TRUE(stream.result.status.ok());
  ASSERT_EQ(stream.result.finish.size(), 2u);
  EXPECT_EQ(stream.result.finish[0].reason(), v1::ABORT);
  EXPECT_EQ(stream.result.finish[1].reason(), v1::ABORT);
  EXPECT_TRUE(server.WaitIdle());
}

TEST(OverloadTest, ACancelStormLeavesNothingBehind) {
  TestServer server;
  server.script->step_delay_us = 200;
  std::vector<std::thread> clients;
  for (uint32_t c = 0; c < 8; ++c) {
    clients.emplace_back([&server, c] {
      std::mt19937 random(c);
      std::unique_ptr<v1::Inference::Stub> stub = v1::Inference::NewStub(server.Connect());
      for (int i = 0; i < 40; ++i) {
        grpc::ClientContext context;
        SetTimeout(&context, 1 + static_cast<int>(random() % 40));
        v1::GenerateRequest request =
            GreedyRequest("storm", static_cast<uint32_t>(1 + random() % 200));
        request.mutable_sampling()->set_n(static_cast<uint32_t>(1 + random() % 3));
        auto reader = stub->GenerateStream(&context, request);
        v1::GenerateDelta event;
        for (uint64_t reads = random() % 30; reads > 0 && reader->Read(&event); --reads) {
        }
        if (random() % 2 == 0) context.TryCancel();
        while (reader->Read(&event)) {
        }
        const grpc::StatusCode code = reader->Finish().error_code();
        EXPECT_TRUE(code == grpc::OK || code == grpc::CANCELLED ||
                    code == grpc::DEADLINE_EXCEEDED || code == grpc::RESOURCE_EXHAUSTED)
            << code;
      }
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_TRUE(server.WaitIdle());
  grpc::ClientContext context;
  SetTimeout(&context);
  const StreamResult after = ReadStream(*server.inference, GreedyRequest("calm", 20), &context);
  EXPECT_EQ(after.text.at(0), ExpectedText("calm", 20));
}

TEST(OverloadTest, ManyStreamsAtOnceAreEachTheirOwn) {
  TestServer server;
  std::vector<std::unique_ptr<BackgroundStream>> streams;
  for (int i = 0; i < 40; ++i) {
    v1::GenerateRequest request = GreedyRequest(absl::StrCat("prompt ", i), 50);
    streams.push_back(std::make_unique<BackgroundStream>(server, request));
  }
  for (int i = 0; i < 40; ++i) {
    streams[static_cast<size_t>(i)]->Join();
    const StreamResult& result = streams[static_cast<size_t>(i)]->result;
    ASSERT_TRUE(result.status.ok()) << result.status.error_message();
    EXPECT_EQ(result.text.at(0), ExpectedText(absl::StrCat("prompt ", i), 50));
  }
  EXPECT_TRUE(server.WaitIdle());
}

}  // namespace
}  // namespace fox
