// Answers of a running server over gRPC: text, ids, log-probabilities, ends, refusals, and readers
// that stop reading.
#include <gtest/gtest.h>

#include "tests/fixtures/test_server.h"

namespace fox {
namespace {

class GenerateTest : public ::testing::Test {
 protected:
  grpc::Status Generate(const v1::GenerateRequest& request, v1::GenerateResponse* response) {
    grpc::ClientContext context;
    SetTimeout(&context);
    return server_.inference->Generate(&context, request, response);
  }
  grpc::StatusCode CodeOf(const v1::GenerateRequest& request) {
    v1::GenerateResponse response;
    const grpc::Status status = Generate(request, &response);
    EXPECT_LE(status.error_message().size(), 1024u);
    EXPECT_EQ(status.error_message().find('/'), std::string::npos) << status.error_message();
    return status.error_code();
  }

  TestServer server_;
};

TEST_F(GenerateTest, UnaryEqualsStreamedEqualsExpected) {
  v1::GenerateRequest request = GreedyRequest("hello", 40);
  request.mutable_output()->set_token_ids(true);
  for (uint32_t interval : {1u, 7u, 1024u}) {
    SCOPED_TRACE(interval);
    request.mutable_output()->set_stream_interval(interval);
    v1::GenerateResponse response;
    ASSERT_TRUE(Generate(request, &response).ok());
    ASSERT_EQ(response.completions_size(), 1);
    const v1::Completion& completion = response.completions(0);
    EXPECT_EQ(completion.text(), ExpectedText("hello", 40));
    EXPECT_EQ(completion.finish().reason(), v1::LENGTH);
    EXPECT_EQ(completion.finish().usage().prompt_tokens(), 6u);
    EXPECT_EQ(completion.finish().usage().completion_tokens(), 40u);
    EXPECT_EQ(response.prompt().request_id().size(), 36u);

    OpenStream streamed(server_.channel, request);
    ASSERT_TRUE(streamed.End().ok());
    EXPECT_EQ(streamed.text, completion.text());
    EXPECT_EQ(streamed.ids,
              std::vector<uint32_t>(completion.token_ids().begin(), completion.token_ids().end()));
    ASSERT_EQ(streamed.finishes.size(), 1u);
    EXPECT_EQ(streamed.finishes[0].reason(), v1::LENGTH);
  }
  EXPECT_TRUE(server_.WaitIdle());
}

TEST_F(GenerateTest, StopStringEndsTheTextOnce) {
  const std::string whole = ExpectedText("stop here", 40);
  const std::string stop = whole.substr(10, 6);
  const size_t at = whole.find(stop);
  v1::GenerateRequest request = GreedyRequest("stop here", 3000);  // the engine must stop, too
  request.mutable_stopping()->add_stop("never");
  request.mutable_stopping()->add_stop(stop);
  for (bool include : {false, true}) {
    SCOPED_TRACE(include);
    request.mutable_stopping()->set_include_stop_str_in_output(include);
    OpenStream result(server_.channel, request);
    ASSERT_TRUE(result.End().ok());
    EXPECT_EQ(result.text, whole.substr(0, at + (include ? stop.size() : 0)));
    ASSERT_EQ(result.finishes.size(), 1u);
    EXPECT_EQ(result.finishes[0].reason(), v1::STOP);
    EXPECT_EQ(result.finishes[0].stop_str(), stop);
    EXPECT_EQ(result.finishes[0].usage().completion_tokens(), at + stop.size());
  }
  EXPECT_TRUE(server_.WaitIdle());
  EXPECT_EQ(server_.Load().requests_finished(), 2u);
  EXPECT_EQ(server_.Load().requests_aborted(), 0u);
}

TEST_F(GenerateTest, LogprobsEchoStatsAndStopIds) {
  v1::GenerateRequest request = GreedyRequest("logs", 5);
  v1::Output* output = request.mutable_output();
  output->set_logprobs(2);
  output->set_prompt_logprobs(0);
  output->add_logprob_token_ids('z');
  output->set_echo(true);
  output->set_perf_metrics(true);
  output->set_acp_stats(true);
  request.mutable_stopping()->add_stop_token_ids(' ');
  v1::GenerateResponse response;
  ASSERT_TRUE(Generate(request, &response).ok());
  EXPECT_EQ(response.prompt().text(), "logs");
  EXPECT_EQ(response.prompt().token_ids_size(), 5);
  EXPECT_EQ(response.prompt().prompt_logprobs_size(), 4);
  const v1::Completion& completion = response.completions(0);
  const std::string whole = ExpectedText("logs", 5);
  EXPECT_EQ(completion.text(), whole.substr(0, whole.find(' ')));
  EXPECT_EQ(completion.finish().reason(), v1::STOP);
  EXPECT_EQ(completion.finish().stop_token_id(), static_cast<uint32_t>(' '));
  ASSERT_EQ(completion.logprobs_size(), static_cast<int>(completion.text().size()));
  for (const v1::TokenLogprobs& position : completion.logprobs()) {
    SCOPED_TRACE(position.ShortDebugString());
    EXPECT_EQ(position.token().rank(), 1u);
    EXPECT_EQ(position.top_size(), 3);
    EXPECT_LT(position.token().logprob(), 0);
  }
  EXPECT_GT(completion.finish().perf().e2e_s(), 0);
  EXPECT_GT(completion.finish().acp().pages_allocated(), 0u);
}

TEST_F(GenerateTest, ScoreSumsThePrompt) {
  v1::ScoreRequest request;
  request.set_text("score me");
  request.set_logprobs(1);
  request.set_perf_metrics(true);
  grpc::ClientContext context;
  SetTimeout(&context);
  v1::ScoreResponse response;
  ASSERT_TRUE(server_.inference->Score(&context, request, &response).ok());
  EXPECT_EQ(response.token_ids_size(), 9);
  ASSERT_EQ(response.logprobs_size(), 8);
  double sum = 0;
  for (int i = 0; i < 8; ++i) {
    EXPECT_EQ(response.logprobs(i).token().token_id(), response.token_ids(i + 1)) << i;
    sum += static_cast<double>(response.logprobs(i).token().logprob());
  }
  EXPECT_DOUBLE_EQ(response.total_logprob(), sum);
  EXPECT_EQ(response.usage().prompt_tokens(), 9u);
  EXPECT_EQ(response.usage().completion_tokens(), 0u);
}

TEST_F(GenerateTest, MalformedMessagesAndInvalidUtf8AreInvalidArgument) {
  const std::shared_ptr<grpc::Channel> channel = server_.Connect();
  // The text (field 3) has a lone continuation byte, an overlong form, or a surrogate; the last
  // message cannot be parsed.
  for (const std::string& bytes : {std::string("\x1a\x01\x80"), std::string("\x1a\x02\xc0\x80"),
                                   std::string("\x1a\x03\xed\xa0\x80"), std::string("\x1a\xff")}) {
    const grpc::Status status = Exchange(channel, "/fox.v1.Inference/Generate", bytes);
    EXPECT_EQ(status.error_code(), grpc::INVALID_ARGUMENT) << status.error_message();
  }
}

TEST_F(GenerateTest, TooLargeMessagesAndUnknownMethodsAreRefusedByTheLibrary) {
  EXPECT_EQ(CodeOf(GreedyRequest(std::string((16 << 20) + 1, 'x'), 4)), grpc::RESOURCE_EXHAUSTED);
  const grpc::Status status = Exchange(server_.channel, "/fox.v1.Inference/Embed", "");
  EXPECT_EQ(status.error_code(), grpc::UNIMPLEMENTED);
}

// Readers that stop reading: their calls end after --stall-timeout, and all that they held is free
// again. http_connections_test has the budget of unread messages, call_test slow readers.
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
