// Readers that stop reading: their calls end after --stall-timeout, and all that they held is free
// again. http_connections_test has the budget of unread messages, call_test slow readers.
#include <gtest/gtest.h>

#include "tests/fixtures/test_server.h"

namespace fox {
namespace {

TestCoreOptions Stalling() {
  TestCoreOptions options;
  options.limits.stall_timeout = 0.4;
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
  EXPECT_TRUE(OpenStream(server.channel, GreedyRequest("fast", 300)).End().ok());  // others go on
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

}  // namespace
}  // namespace fox
