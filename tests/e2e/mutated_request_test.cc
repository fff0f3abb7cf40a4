// A thousand random requests through real gRPC: half are messages with random fields, half are
// bytes of such messages, mutated. The server stays alive and answers each with an allowed code.
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "tests/e2e/random_message.h"
#include "tests/e2e/test_server.h"

namespace fox {
namespace {

TEST(MutatedRequestTest, TheServerAnswersWithAllowedCodes) {
  TestCoreOptions options;
  options.with_chat = true;
  TestServer server(options);
  const std::set<grpc::StatusCode> allowed = {
      grpc::OK,        grpc::INVALID_ARGUMENT,  grpc::OUT_OF_RANGE,
      grpc::NOT_FOUND, grpc::DEADLINE_EXCEEDED, grpc::UNIMPLEMENTED};
  const char* const methods[] = {"/fox.v1.Inference/Generate",   "/fox.v1.Inference/Score",
                                 "/fox.v1.Inference/Abort",      "/fox.v1.Tokenizer/Tokenize",
                                 "/fox.v1.Tokenizer/Detokenize", "/fox.v1.Info/GetModelInfo"};
  RandomMessage random(20240607);
  std::map<grpc::StatusCode, int> seen;
  for (int round = 0; round < 1000; ++round) {
    v1::GenerateRequest request;
    request.ParseFromString(random.Of(request.GetDescriptor()));
    if (random.Below(4) != 0) request.clear_model();
    if (random.Below(2) == 0) request.mutable_stopping()->set_max_tokens(5);
    if (random.Below(2) == 0) request.set_text("some text");
    std::string bytes = request.SerializeAsString();
    if (round % 2 == 1) random.Mutate(&bytes);
    const char* method = methods[random.Below(3) != 0 ? 0 : random.Below(std::size(methods))];
    const grpc::Status status = Exchange(server.channel, method, bytes);
    ++seen[status.error_code()];
    EXPECT_EQ(allowed.count(status.error_code()), 1u)
        << "round " << round << " " << method << ": " << status.error_code() << " "
        << status.error_message();
    EXPECT_LE(status.error_message().size(), 1024u);
    EXPECT_EQ(status.error_message().find('/'), std::string::npos) << status.error_message();
  }
  EXPECT_GT(seen[grpc::OK], 50);
  EXPECT_GT(seen[grpc::INVALID_ARGUMENT], 100);
  EXPECT_TRUE(server.WaitIdle());

  grpc::ClientContext context;
  SetTimeout(&context);
  v1::GenerateResponse response;
  ASSERT_TRUE(server.inference->Generate(&context, GreedyRequest("alive", 5), &response).ok());
  EXPECT_EQ(response.completions(0).text(), ExpectedText("alive", 5));
}

}  // namespace
}  // namespace fox
