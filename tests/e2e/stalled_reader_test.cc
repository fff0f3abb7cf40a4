// Readers that stop reading: their calls end after --stall-timeout, or when unread messages fill
// the budget, and all that they held is free again.
#include <gtest/gtest.h>

#include <map>
#include <thread>

#include "tests/fixtures/test_server.h"

namespace fox {
namespace {

constexpr double kTimeout = 0.4;

TestCoreOptions Stalling(int64_t max_call_bytes = int64_t{256} << 20) {
  TestCoreOptions options;
  options.limits.stall_timeout = kTimeout;
  options.limits.max_call_bytes = max_call_bytes;
  return options;
}

// A request with large answers: 60 tokens take some 15 KB, more than the client's window.
v1::GenerateRequest Bulky(uint32_t max_tokens) {
  v1::GenerateRequest request = GreedyRequest("bulky", max_tokens);
  request.mutable_output()->set_logprobs(20);
  return request;
}

void ExpectNothingHeld(TestServer& server) {
  EXPECT_TRUE(Eventually([&] { return server.core->calls().calls() == 0; }));
  EXPECT_EQ(server.core->calls().bytes(), 0);
  EXPECT_TRUE(server.WaitIdle());
}

TEST(StalledReaderTest, StreamsThatAreNotReadAreAborted) {
  TestServer server(Stalling());
  OpenStream running(server.Connect(), Bulky(3000));  // is paused
  OpenStream finished(server.Connect(), Bulky(60));   // is generated, but not written
  ASSERT_TRUE(Eventually(
      [&] { return server.engine->stats().finished == 1 && server.engine->stats().paused == 1; }));
  EXPECT_EQ(server.core->calls().calls(), 2);
  EXPECT_GT(server.core->calls().bytes(), 0);
  EXPECT_FALSE(server.core->Idle());
  grpc::ClientContext context;  // other clients are served
  SetTimeout(&context);
  EXPECT_TRUE(ReadStream(*server.inference, GreedyRequest("fast", 300), &context).status.ok());
  ExpectNothingHeld(server);
  EXPECT_EQ(running.End().error_code(), grpc::ABORTED);
  EXPECT_EQ(finished.End().error_code(), grpc::ABORTED);
}

TEST(StalledReaderTest, AnAnswerThatIsNotReadIsAborted) {
  TestServer server(Stalling());
  UnreadAnswer answer(server.Connect(), Bulky(60));
  ASSERT_TRUE(Eventually([&] { return server.engine->stats().finished == 1; }));
  EXPECT_EQ(server.core->calls().calls(), 1);  // the last write hangs
  EXPECT_FALSE(server.core->Idle());
  ExpectNothingHeld(server);
  v1::GenerateResponse response;
  EXPECT_EQ(answer.Read(&response).error_code(), grpc::ABORTED);
}

TEST(StalledReaderTest, ASlowReaderThatGoesOnIsNotAborted) {
  TestServer server(Stalling());
  OpenStream stream(server.Connect(), Bulky(600));
  v1::GenerateDelta event;
  std::string text;
  for (int pauses = 0; pauses < 6; ++pauses) {  // three times the timeout
    std::this_thread::sleep_for(std::chrono::duration<double>(kTimeout / 2));
    for (size_t until = text.size() + 60; text.size() < until && stream.Read(&event);) {
      text += event.delta().text();
    }
  }
  EXPECT_TRUE(stream.End().ok());
  EXPECT_EQ(text + stream.text, ExpectedText("bulky", 600));
  ExpectNothingHeld(server);
}

TEST(StalledReaderTest, UnreadMessagesHaveABudget) {
  constexpr int kStreams = 12;
  TestCoreOptions options = Stalling(int64_t{256} << 10);
  options.max_num_seqs = kStreams;
  TestServer server(options);
  std::vector<std::unique_ptr<OpenStream>> streams;
  for (int i = 0; i < kStreams; ++i) {
    streams.push_back(std::make_unique<OpenStream>(server.Connect(), Bulky(3000)));
  }
  ExpectNothingHeld(server);
  std::map<grpc::StatusCode, int> ends;
  for (const auto& stream : streams) ++ends[stream->End().error_code()];
  EXPECT_GE(ends[grpc::RESOURCE_EXHAUSTED], 1);
  EXPECT_EQ(ends[grpc::RESOURCE_EXHAUSTED] + ends[grpc::ABORTED], kStreams);

  grpc::ClientContext context;  // an answer that exceeds the budget
  SetTimeout(&context);
  v1::GenerateResponse response;
  EXPECT_EQ(server.inference->Generate(&context, Bulky(3000), &response).error_code(),
            grpc::RESOURCE_EXHAUSTED);
  grpc::ClientContext reading;  // a client that reads may take as much
  SetTimeout(&reading);
  const StreamResult result = ReadStream(*server.inference, Bulky(3000), &reading);
  EXPECT_TRUE(result.status.ok()) << result.status.error_message();
  ExpectNothingHeld(server);
}

}  // namespace
}  // namespace fox
