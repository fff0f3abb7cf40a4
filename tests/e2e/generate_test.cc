// What a client gets from a running server: text, ids, log-probabilities, ends and refusals.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <thread>

#include "absl/strings/str_cat.h"
#include "tests/e2e/test_server.h"

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

    grpc::ClientContext context;
    SetTimeout(&context);
    StreamResult streamed = ReadStream(*server_.inference, request, &context);
    ASSERT_TRUE(streamed.status.ok()) << streamed.status.error_message();
    EXPECT_EQ(streamed.text.at(0), completion.text());
    EXPECT_EQ(streamed.ids.at(0),
              std::vector<uint32_t>(completion.token_ids().begin(), completion.token_ids().end()));
    ASSERT_EQ(streamed.finish.size(), 1u);
    EXPECT_EQ(streamed.finish[0].reason(), v1::LENGTH);
  }
  EXPECT_TRUE(server_.WaitIdle());
}

TEST_F(GenerateTest, StopStringEndsTheTextOnce) {
  const std::string whole = ExpectedText("stop here", 40);
  const std::string stop = whole.substr(10, 6);
  const size_t at = whole.find(stop);
  v1::GenerateRequest request = GreedyRequest("stop here", 3000);  // the engine has to be told
  request.mutable_stopping()->add_stop("never");
  request.mutable_stopping()->add_stop(stop);
  for (bool include : {false, true}) {
    request.mutable_stopping()->set_include_stop_str_in_output(include);
    grpc::ClientContext context;
    SetTimeout(&context);
    StreamResult result = ReadStream(*server_.inference, request, &context);
    ASSERT_TRUE(result.status.ok()) << result.status.error_message();
    EXPECT_EQ(result.text.at(0), whole.substr(0, at + (include ? stop.size() : 0)));
    ASSERT_EQ(result.finish.size(), 1u);
    EXPECT_EQ(result.finish[0].reason(), v1::STOP);
    EXPECT_EQ(result.finish[0].stop_str(), stop);
    EXPECT_EQ(result.finish[0].usage().completion_tokens(), at + stop.size());
  }
  EXPECT_TRUE(server_.WaitIdle());
  EXPECT_EQ(server_.Load().requests_finished(), 2u);
  EXPECT_EQ(server_.Load().requests_aborted(), 0u);
}

TEST_F(GenerateTest, SeveralSequencesHaveIndicesAndTheirOwnSeeds) {
  v1::GenerateRequest request = GreedyRequest("many", 30);
  request.mutable_sampling()->set_temperature(5);
  request.mutable_sampling()->set_seed(7);
  request.mutable_sampling()->set_n(4);
  request.mutable_output()->set_token_ids(true);
  v1::GenerateResponse response;
  ASSERT_TRUE(Generate(request, &response).ok());
  ASSERT_EQ(response.completions_size(), 4);
  // Sequence 2 of seed 7 is sequence 0 of seed 9.
  request.mutable_sampling()->set_seed(9);
  request.mutable_sampling()->set_n(1);
  v1::GenerateResponse single;
  ASSERT_TRUE(Generate(request, &single).ok());
  const auto& third = response.completions(2).token_ids();
  const auto& alone = single.completions(0).token_ids();
  EXPECT_TRUE(std::equal(third.begin(), third.end(), alone.begin(), alone.end()));
  const auto& first = response.completions(0).token_ids();
  EXPECT_FALSE(std::equal(first.begin(), first.end(), third.begin(), third.end()));
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
    EXPECT_EQ(response.logprobs(i).token().token_id(), response.token_ids(i + 1));
    sum += static_cast<double>(response.logprobs(i).token().logprob());
  }
  EXPECT_DOUBLE_EQ(response.total_logprob(), sum);
  EXPECT_EQ(response.usage().prompt_tokens(), 9u);
  EXPECT_EQ(response.usage().completion_tokens(), 0u);
}

TEST_F(GenerateTest, BadRequestsAreNamed) {
  v1::GenerateRequest empty;
  EXPECT_EQ(CodeOf(empty), grpc::INVALID_ARGUMENT);
  v1::GenerateRequest request = GreedyRequest("x", 4);
  request.set_model("other");
  EXPECT_EQ(CodeOf(request), grpc::NOT_FOUND);
  request = GreedyRequest(std::string(5000, 'x'), 4);
  EXPECT_EQ(CodeOf(request), grpc::OUT_OF_RANGE);
  request = GreedyRequest(std::string(65 << 10, 'x'), 4);
  EXPECT_EQ(CodeOf(request), grpc::INVALID_ARGUMENT);
  request = GreedyRequest(std::string("a\0b", 3), 4);
  EXPECT_EQ(CodeOf(request), grpc::INVALID_ARGUMENT);
  request = GreedyRequest("x", 4);
  request.mutable_token_ids()->add_ids(CharacterTokenizer::kVocabSize);
  EXPECT_EQ(CodeOf(request), grpc::INVALID_ARGUMENT);
  request = GreedyRequest("x", 4);
  request.mutable_sampling()
      ->GetReflection()
      ->MutableUnknownFields(request.mutable_sampling())
      ->AddLengthDelimited(20, "{}");
  EXPECT_EQ(CodeOf(request), grpc::UNIMPLEMENTED);
}

TEST_F(GenerateTest, MalformedMessagesAndInvalidUtf8AreInvalidArgument) {
  const std::shared_ptr<grpc::Channel> channel = server_.Connect();
  // text (field 3) holding a lone continuation byte, an overlong form, a surrogate; then garbage.
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

TEST_F(GenerateTest, AcpMayOnlyBeStricter) {
  v1::GenerateRequest request = GreedyRequest("acp", 4);
  request.mutable_output()->set_acp_stats(true);
  request.mutable_acp()->set_log_tolerance(-9);
  EXPECT_EQ(CodeOf(request), grpc::INVALID_ARGUMENT);
  request.mutable_acp()->set_log_tolerance(-12);
  v1::GenerateResponse response;
  ASSERT_TRUE(Generate(request, &response).ok());
  EXPECT_EQ(response.completions(0).finish().acp().log_tolerance(), -12);
  request.mutable_acp()->set_mode(v1::PAPER);
  EXPECT_EQ(CodeOf(request), grpc::INVALID_ARGUMENT);
  request.mutable_acp()->set_mode(static_cast<v1::AcpMode>(77));
  EXPECT_EQ(CodeOf(request), grpc::INVALID_ARGUMENT);
  request.mutable_acp()->set_mode(v1::OFF);
  EXPECT_EQ(CodeOf(request), grpc::OK);
}

TEST_F(GenerateTest, SpecialFloatsAreAnsweredByRange) {
  const float infinity = std::numeric_limits<float>::infinity();
  const float specials[] = {std::nanf(""), infinity, -infinity, -1e-38f, 1e38f, -1.0f, 101.0f};
  for (float value : specials) {
    v1::GenerateRequest request = GreedyRequest("f", 2);
    v1::Sampling* sampling = request.mutable_sampling();
    sampling->set_temperature(value);
    EXPECT_EQ(CodeOf(request), grpc::INVALID_ARGUMENT) << "temperature " << value;
    sampling->set_temperature(-0.0f);
    EXPECT_EQ(CodeOf(request), grpc::OK);
    sampling->set_top_p(value);
    EXPECT_EQ(CodeOf(request), grpc::INVALID_ARGUMENT) << "top_p " << value;
    sampling->clear_top_p();
    (*sampling->mutable_logit_bias())['a'] = value;
    const bool legal = value >= -100 && value <= 100;
    EXPECT_EQ(CodeOf(request), legal ? grpc::OK : grpc::INVALID_ARGUMENT) << "bias " << value;
  }
  v1::GenerateRequest request = GreedyRequest("f", 2);
  request.mutable_sampling()->set_temperature(1e-38f);
  request.mutable_sampling()->set_top_p(1e-38f);
  EXPECT_EQ(CodeOf(request), grpc::OK);
}

TEST(GenerateWithoutTokenizerTest, IdsOnly) {
  TestCoreOptions options;
  options.with_tokenizer = false;
  TestServer server(options);
  v1::GenerateRequest request = GreedyRequest("x", 4);
  v1::GenerateResponse response;
  {
    grpc::ClientContext context;
    EXPECT_EQ(server.inference->Generate(&context, request, &response).error_code(),
              grpc::FAILED_PRECONDITION);
  }
  request.mutable_token_ids()->add_ids('x');
  grpc::ClientContext context;
  ASSERT_TRUE(server.inference->Generate(&context, request, &response).ok());
  EXPECT_EQ(response.completions(0).token_ids_size(), 4);
  EXPECT_EQ(response.completions(0).text(), "");
}

}  // namespace
}  // namespace fox
